"""The ConfigMap with which a user audits a job on its cluster, backs it up or restores it: its configuration and Pods.

    kubectl get configmap JOB-audit --output 'jsonpath={.data.pod\\.yaml}' | kubectl create --filename -
    kubectl get configmap JOB-audit --output 'jsonpath={.data.backup\\.yaml}' | sed s,TARGET,s3://bucket/JOB, |
      kubectl create --filename -

The audit's pod also mounts the ConfigMaps of the workers, which exist while the job has pods: it compares them with
its own. The pods of the audit and the backup get read-only NATS credentials and the job's volume claims; they run
`rljob audit` and `rljob backup` on the job's configuration. The ConfigMap exists as long as the RLJob, so both work
while the job runs, is suspended, or has ended. That of `rljob restore` (`restore.yaml`, used like the backup's) may
write, and finds its credentials only as long as the job is suspended and has never run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rljob_core import worker_protocol
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.metadata import child_metadata, config_map, kept
from rljob_operator.children.model_download import credentials, with_weights
from rljob_operator.children.nats_credentials import TOKEN_VOLUME, access
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.worker_pod import Patches, pod_template, sibling
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.permissions import Holder

POD_FILE = "pod.yaml"
BACKUP_FILE = "backup.yaml"
RESTORE_FILE = "restore.yaml"
_WORKER_CONFIGS = "worker-configs"
TARGET = "TARGET"
"""Stands in the Pods for the place of the backup."""


def audit_config_map(job: ResolvedJob) -> Manifest:
    """The ConfigMap `<job>-audit`: the configuration, and the Pods that audit the job, back it up and restore it."""
    name, config = job.metadata.name, f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"
    audit = _with_worker_configs(job, _pod(job, names.audit(name), ["audit", config]))
    backup = _pod(job, names.backup(name), ["backup", config, TARGET])
    restore = _pod(job, names.restore(name), ["restore", TARGET, config], Holder.RESTORER)
    # JSON is valid YAML, and no YAML writer folds or quotes it in surprising ways.
    pods = {POD_FILE: audit, BACKUP_FILE: backup, RESTORE_FILE: restore}
    texts = {file: json.dumps(pod, indent=2) for file, pod in pods.items()}
    metadata = child_metadata(job.job, names.audit(name), None)
    return kept(config_map(metadata, {names.CONFIG_FILE: job.config_text, **texts}))


def _pod(job: ResolvedJob, name: str, arguments: Sequence[str], holder: Holder = Holder.READER) -> Manifest:
    """The Pod of that name that runs a command of `rljob`, with those credentials."""
    command, config_map = arguments[0], names.audit(job.metadata.name)
    labels = names.command_labels(job.metadata.name, command)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": job.metadata.namespace, "labels": labels},
        "spec": command_pod(job, config_map, ["rljob", *arguments], container=command, holder=holder),
    }


def _with_worker_configs(job: ResolvedJob, pod: Manifest) -> Manifest:
    """The Pod with the configurations that the workers' pods mount, as far as they exist when it starts."""
    name, spec = job.metadata.name, pod["spec"]
    pools = [names.child(name, Role.ROLLOUT, pool.name) for pool in job.spec.rollout.pools]
    sources = [
        {
            "configMap": {
                "name": config_map,
                "optional": True,
                "items": [{"key": names.CONFIG_FILE, "path": f"{config_map}.json"}],
            }
        }
        for config_map in map(names.config_map, [name, *pools])
    ]
    (container,) = spec["containers"]
    mount = {"name": _WORKER_CONFIGS, "mountPath": names.WORKER_CONFIGS_FOLDER, "readOnly": True}
    mounts = [*container["volumeMounts"], mount]
    volumes = [*spec["volumes"], {"name": _WORKER_CONFIGS, "projected": {"sources": sources}}]
    return {
        **pod,
        "spec": {**spec, "containers": [{**container, "volumeMounts": mounts}], "volumes": volumes},
    }


def command_pod(
    job: ResolvedJob, config_map: str, arguments: Sequence[str], *, container: str, holder: Holder
) -> Manifest:
    """The spec of a pod that runs one command and exits: the coordinator's pod with other credentials.

    Args:
        config_map: name of the ConfigMap with the configuration.
        arguments: the command that the pod runs.
        container: name of the container.
        holder: whose credentials it has; the restorer may also write to the job's claims.
    """
    patches = Patches("spec.coordinator.template", job.spec.coordinator.template)
    spec = pod_template(job, Role.COORDINATOR, config_map, patches)["spec"]
    ours = next(c for c in spec["containers"] if c["name"] == Role.COORDINATOR.value)
    nats = access(job, holder)
    coordinators = {worker_protocol.NATS_CREDENTIALS, worker_protocol.NATS_JWT}
    env = [variable for variable in ours["env"] if variable["name"] not in coordinators]
    mounts = [mount for mount in ours["volumeMounts"] if mount.get("name") != TOKEN_VOLUME]
    volumes = [volume for volume in spec["volumes"] if volume.get("name") != TOKEN_VOLUME]
    if holder is Holder.RESTORER:
        mounts = [_writable(mount, job) for mount in mounts]
    ours = {**ours, "env": env, "volumeMounts": [*mounts, *nats.mounts], "envFrom": credentials(job)}
    only = sibling(ours, container, arguments, nats.variables)
    # The workers' ServiceAccount is deleted when the job ends.
    kept = {field: spec[field] for field in spec if field not in {"initContainers", "serviceAccountName"}}
    fetch = with_weights(spec.get("initContainers", []))
    if (
        fetch and container != "audit"
    ):  # a backup and a restore compare the model with the one that was trained
        kept["initContainers"] = fetch
    return {**kept, "containers": [only], "volumes": [*volumes, *nats.volumes], "restartPolicy": "Never"}


def _writable(mount: Manifest, job: ResolvedJob) -> Manifest:
    """The mount without its protection, if it is one of the job's claims."""
    claims = {storage.mount_path(claim) for claim in job.written_claims}
    return mount if mount["mountPath"] not in claims else {k: v for k, v in mount.items() if k != "readOnly"}
