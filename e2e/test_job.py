"""The example job as pods on two nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.conftest import AnyCluster
from e2e.harness.kubectl import Kubectl
from e2e.harness.network_policies import enforced
from e2e.harness.volumes import environment
from e2e.installation import EXAMPLES, SYSTEM
from e2e.jobs import Job
from e2e.pods import pod, service
from e2e.reach import reached

pytestmark = pytest.mark.timeout(1800)


NATS = f"nats.{SYSTEM}:4222"
API_SERVER = "kubernetes.default.svc:443"
METRICS = 9464


def test_the_demo_runs_as_pods_on_two_nodes(
    jobs: tuple[Kubectl, Path], installed: AnyCluster, namespace: str
) -> None:
    """With all NetworkPolicies enforced, where the nodes are ours: nothing that a job needs is denied."""
    kubectl, _folder = jobs
    with ExitStack() as policies:
        if installed.own is not None:
            stranger = stranger_pod(kubectl.within(namespace), installed.image)
            outside = [NATS, f"{address_of(kubectl.within(SYSTEM), 'nats-0')}:8222"]
            assert stranger(*outside) == {NATS}  # the monitor's port listens to its own pod alone
            policies.enter_context(enforced(installed.own))
        kubectl("apply", f"--filename={EXAMPLES / 'chain-sum.yaml'}")
        job = Job(kubectl, "chain-sum")
        if installed.own is not None:
            job.advances(1, seconds=600)
            assert stranger(*outside, API_SERVER) == {API_SERVER}
            other = f"stranger.{namespace}:9000"
            engine = job.pods("rollout")[0]["metadata"]["name"]
            assert reached(kubectl, engine, "rollout", NATS, other, API_SERVER) == {NATS}
            metrics = {f"{address_of(kubectl, pod)}:{METRICS}" for pod in workers(job)}
            assert stranger(*metrics) == set()
            near = kubectl.within(namespace)
            near("label", "pod", "stranger", "--overwrite", "app.kubernetes.io/name=prometheus")
            job.until(lambda: stranger(*metrics) == metrics, seconds=400)
            kubectl("patch", "rljob", "chain-sum", "--type=merge", f"--patch={egress_to(namespace)}")
            job.until(lambda: reached(kubectl, engine, "rollout", other), seconds=400)
        nodes = job.nodes_until("Succeeded", seconds=1200)
        assert nodes >= {"east", "west"}
        status = job.status()
        assert status["step"] == 60
        assert status["rewardMean"] > 0.6
        job.audit()


def stranger_pod(kubectl: Kubectl, image: str) -> Callable[..., set[str]]:
    """A pod of another team, with a server on port 9000; gives a function: which places it reaches."""
    python = environment(kubectl.namespace)
    serve = [python.python, "-m", "http.server", "9000"]
    kubectl.apply(
        [
            *python.manifests,
            pod("stranger", serve, image=image, environment=python),
            service("stranger", 9000),
        ]
    )
    kubectl.wait("condition=Ready", "pod/stranger")
    return lambda *places: reached(kubectl, "stranger", "main", *places, python=python.python)


def workers(job: Job) -> list[str]:
    """Names of the pods that serve metrics: one of each role."""
    return [job.pods(role)[0]["metadata"]["name"] for role in ("coordinator", "reward", "rollout", "trainer")]


def address_of(kubectl: Kubectl, pod: str) -> str:
    return kubectl("get", "pod", pod, "--output=jsonpath={.status.podIP}")


def egress_to(namespace: str) -> str:
    """A patch of a job, whose workers may then connect to that namespace."""
    return json.dumps({"spec": {"networking": {"egress": [{"namespace": namespace, "ports": [9000]}]}}})
