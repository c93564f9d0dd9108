"""The RLJobs that the benchmark creates, and the test for one that is at rest."""

from __future__ import annotations

from datetime import datetime

from rljob_core.spec import API_VERSION
from rljob_operator.cluster.port import Manifest

NAMESPACE = "bench"
PODS = 10
ROLLOUTS = PODS - 3  # besides one coordinator, one reward worker, one trainer


def name(number: int) -> str:
    """A job's name. No name is a prefix of another, so that a child's name identifies its job."""
    return f"job-{number:05}"


def job_of(child: str) -> str:
    """The name of the job to which a child of that name belongs."""
    return child[: len(name(0))]


def manifest(number: int) -> Manifest:
    """A job of ten pods."""
    return {
        "apiVersion": API_VERSION,
        "kind": "RLJob",
        "metadata": {"name": name(number), "namespace": NAMESPACE},
        "spec": {
            "steps": 100,
            "model": {"uri": "/models/bench"},  # of the image: no pod here could look up another
            "data": {"dataset": "chain_sum"},
            "rollout": {"pools": [{"name": "cpu", "replicas": ROLLOUTS}]},
            "weights": {"uri": "s3://bench/weights"},
            "trainer": {"checkpoint": {"uri": "s3://bench/checkpoints"}},
        },
    }


def at_rest(job: Manifest) -> bool:
    """Whether the job trains with all its pods, and its status reports that for the newest spec."""
    status = job.get("status", {})
    states = {c["type"]: c["status"] for c in status.get("conditions", [])}
    return (
        states.get("Ready") == "True"
        and states.get("Reconciling") == "False"
        and status.get("observedGeneration") == job["metadata"]["generation"]
        and status.get("rollout") == f"{ROLLOUTS}/{ROLLOUTS}"
    )


def turned(job: Manifest, condition: str) -> float:
    """When a condition last changed, in seconds since 1970, to the millisecond."""
    found = next(c for c in job["status"]["conditions"] if c["type"] == condition)
    return datetime.fromisoformat(found["lastTransitionTime"]).timestamp()
