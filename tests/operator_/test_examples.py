"""An API server accepts every manifest of manifests/examples, and all that the operator would make of its job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace
from installation import CHECKOUT, MANIFESTS, of_kind
from ruamel.yaml import YAML

from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.nats.accounts import Seeds, issuer

pytestmark = pytest.mark.smoke

Object = dict[str, Any]

EXAMPLES = sorted((MANIFESTS / "examples").glob("*.yaml"))
DEFAULTS = ClusterDefaults(
    nats_url="nats://nats:4222",
    weights_uri="pvc://rljob/weights",
    checkpoint_uri="pvc://rljob/checkpoints",
    trainer_log_uri="",
    per_job=True,
    containers=True,  # as the operator has it on a cluster
    revisions={"model": "found", "data": "found", "evaluation": "found"},
    issuer=issuer(Seeds.complete({}, bytes)),
)


@pytest.fixture(scope="module")
def here(control_plane: SharedControlPlane) -> Any:
    """A namespace that enforces Restricted Pod Security, of a server that knows our kinds."""
    kubectl = control_plane.kubectl
    kubectl("apply", "--server-side", "--kustomize", str(CHECKOUT / "crds"))
    for name in ("rljobs.rljob.dev", "rolloutpools.rljob.dev", "sites.rljob.dev"):
        kubectl.wait("condition=Established", f"crd/{name}")
    with own_namespace(kubectl, for_pods=True, operated=False) as name:
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        yield kubectl.within(name)


def accepted(kubectl: Kubectl, *objects: Object, output: str = "name") -> str:
    """What the API server answers to a request to create them, which it does not do."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    arguments = ("--dry-run=server", "--validate=strict", f"--output={output}", "--filename=-")
    return kubectl("create", *arguments, input_text=listed)


def read(file: Path) -> list[Object]:
    """All objects of a file."""
    return [dict(found) for found in YAML(typ="safe").load_all(file.read_text())]


def job_of(file: Path) -> Object:
    (found,) = of_kind(read(file), "RLJob")
    return found


def made_job(file: Path) -> RLJob:
    """The job as an API server has it: credentials and keys are made of its uid."""
    manifest = job_of(file)
    return RLJob.model_validate({**manifest, "metadata": {**manifest["metadata"], "uid": "u-1"}})


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_accepted(here: Kubectl, file: Path) -> None:
    objects = read(file)
    accepted(here, *objects)
    workloads = of_kind(objects, "Deployment")
    if workloads:  # a Deployment is accepted whose pods are not
        accepted(here, *(pod(workload, here.namespace) for workload in workloads))


@pytest.mark.parametrize(
    "file", [f for f in EXAMPLES if "RLJob" in f.read_text()], ids=lambda file: file.stem
)
def test_what_is_made_of_a_job_is_accepted(here: Kubectl, file: Path) -> None:
    stored = json.loads(accepted(here, job_of(file), output="json"))
    metadata = {
        "name": stored["metadata"]["name"],
        "namespace": here.namespace,
        "uid": "u-1",
        "generation": 1,
    }
    job = RLJob.model_validate({**stored, "metadata": metadata})
    pools = {pool.name: {"metadata": {"uid": "u-2"}, "spec": {}} for pool in job.spec.rollout.pools}
    made = desired(resolve_job(job, DEFAULTS), Targets(1, 0, pools))
    assert {child["kind"] for child in made} >= {"Deployment", "Job", "RolloutPool"}
    accepted(here, *made)
    # A Deployment is accepted whose pods are not.
    pods = [pod(child, here.namespace) for child in made if child["kind"] in {"Deployment", "Job"}]
    accepted(here, *pods)


def pod(workload: Object, namespace: str) -> Object:
    template = workload["spec"]["template"]
    metadata = {"name": workload["metadata"]["name"], "namespace": namespace, **template["metadata"]}
    # The API server asks for the account, which a dry run does not make.
    spec = {field: value for field, value in template["spec"].items() if field != "serviceAccountName"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_two_pools_ask_for_what_they_should() -> None:
    job = made_job(MANIFESTS / "examples/two-pools.yaml")
    pools = {pool.name: {"metadata": {"uid": "u-2"}, "spec": {}} for pool in job.spec.rollout.pools}
    made = {
        f"{c['kind']} {c['metadata']['name']}": c
        for c in desired(resolve_job(job, DEFAULTS), Targets(1, 0, pools))
    }
    steady, spot = (made[f"Deployment grade-school-rollout-{name}"]["spec"] for name in pools)
    assert (steady["replicas"], spot["replicas"]) == (4, 0)
    for workload in (steady, spot, made["Job grade-school-trainer-1"]["spec"]):
        spec = workload["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert spec["nodeSelector"]
    tolerated = {toleration["key"] for toleration in spot["template"]["spec"]["tolerations"]}
    lost = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert tolerated == {"spot", "nvidia.com/gpu", *lost}


def test_every_gang_has_the_gpus_of_its_ranks() -> None:
    for name, pods, gpus in (("vllm-gpu", 1, 4), ("deepspeed-nodes", 2, 8)):
        job = made_job(MANIFESTS / f"examples/{name}.yaml")
        pools = {pool.name: {"metadata": {"uid": "u-2"}, "spec": {}} for pool in job.spec.rollout.pools}
        (trainer,) = [
            c
            for c in desired(resolve_job(job, DEFAULTS), Targets(1, 0, pools))
            if c["metadata"]["name"] == f"{name}-trainer-1" and c["kind"] == "Job"
        ]
        assert trainer["spec"]["completions"] == pods
        (container,) = trainer["spec"]["template"]["spec"]["containers"]
        assert (
            container["resources"]["limits"]["nvidia.com/gpu"] == gpus == job.spec.trainer.num_proc_per_node
        )


def test_the_autoscaler_scales_the_pool_of_its_job() -> None:
    job, autoscaler = read(MANIFESTS / "examples/autoscaling.yaml")
    (pool,) = RLJob.model_validate(job).spec.rollout.pools
    assert pool.scaling is not None
    target = autoscaler["spec"]["scaleTargetRef"]
    assert target["name"] == names.child(job["metadata"]["name"], names.Role.ROLLOUT, pool.name)
    bounds = (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"])
    assert bounds == (pool.scaling.min_replicas, pool.scaling.max_replicas)
