"""The trainer's gang: a Job per attempt, and the headless Service that gives the Job's pods their host names."""

from __future__ import annotations

from rljob_core import worker_protocol
from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.metadata import child_metadata, digest
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.worker_pod import Patches, command, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

RENDEZVOUS_PORT = 29400


def trainer_hash(job: ResolvedJob) -> str:
    """Digest of everything in a trainer's Job except the attempt's number: if it changes, a new attempt is needed.

    A Job of fewer nodes than `numNodes` has the digest of the Job of all nodes.
    """
    nodes = job.spec.trainer.num_nodes
    return digest([trainer_template(job, 0, nodes), nodes])


def trainer_job(job: ResolvedJob, attempt: int, failures: int, nodes: int) -> Manifest:
    """The Job of one attempt: one pod per node; Kubernetes itself never restarts them (`backoffLimit` 0)."""
    metadata = child_metadata(job.job, names.trainer_job(job.metadata.name, attempt), Role.TRAINER)
    metadata["labels"] |= {names.LABEL_ATTEMPT: str(attempt)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **metadata,
            "annotations": {names.CONFIG_HASH: trainer_hash(job), names.FAILURES: str(failures)},
        },
        "spec": {
            "backoffLimit": 0,
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "template": trainer_template(job, attempt, nodes),
        },
    }


def trainer_service(job: RLJob) -> list[Manifest]:
    """The Service that gives the gang's pods their host names; empty if the gang never has more than one."""
    if job.spec.trainer.num_nodes == 1:
        return []
    name = names.child(job.metadata.name, Role.TRAINER)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(job, name, Role.TRAINER),
        "spec": {
            "clusterIP": "None",
            # Ranks find one another before any is Ready.
            "publishNotReadyAddresses": True,
            "selector": names.identity(job.metadata.name, Role.TRAINER),
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }
    return [service]


def trainer_template(job: ResolvedJob, attempt: int, nodes: int) -> Manifest:
    """The pod template of an attempt with so many nodes, as if each pod were placed by itself.

    Raises:
        SpecError: the trainer's pod template patch does not fit.
    """
    container: Manifest = {
        "name": Role.TRAINER.value,
        "command": _trainer_command(nodes, job.spec.trainer.num_proc_per_node),
        "env": [{"name": worker_protocol.ATTEMPT, "value": str(attempt)}],
    }
    spec: Manifest = {"restartPolicy": "Never", "containers": [container]}
    if nodes > 1:
        service = names.child(job.metadata.name, Role.TRAINER)
        first = f"{names.trainer_job(job.metadata.name, attempt)}-0"
        spec["subdomain"] = service
        container["ports"] = [{"name": "rendezvous", "containerPort": RENDEZVOUS_PORT}]
        container["env"] += [
            {"name": "MASTER_ADDR", "value": f"{first}.{service}"},
            {"name": "MASTER_PORT", "value": str(RENDEZVOUS_PORT)},
        ]
    patch = {"metadata": {"labels": {names.LABEL_ATTEMPT: str(attempt)}}, "spec": spec}
    patches = Patches("spec.trainer.template", job.spec.trainer.template, role=patch)
    return pod_template(job, Role.TRAINER, names.config_map(job.metadata.name), patches)


def _trainer_command(nodes: int, processes: int) -> list[str]:
    if nodes * processes == 1:
        return command(Role.TRAINER)
    if nodes == 1:
        place = ["--standalone"]
    else:
        place = [
            f"--nnodes={nodes}",
            "--node-rank=$(JOB_COMPLETION_INDEX)",
            "--master-addr=$(MASTER_ADDR)",
            "--master-port=$(MASTER_PORT)",
        ]
    launcher = [
        "python",
        "-m",
        "torch.distributed.run",
        *place,
        f"--nproc-per-node={processes}",
    ]
    return [*launcher, "--max-restarts=0", "--module", *command(Role.TRAINER)[2:]]
