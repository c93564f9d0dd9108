"""A vLLM rollout pod and a trainer of two pods, one rank each, on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.harness.kubectl import Kubectl
from e2e.jobs import Job, example

pytestmark = pytest.mark.timeout(1800)

STEPS = 12


def test_vllm_pods_feed_a_trainer_sharded_over_two_pods(jobs: tuple[Kubectl, Path]) -> None:
    kubectl, _folder = jobs
    manifest = example("chain-sum")
    spec = manifest["spec"]
    spec["steps"] = STEPS
    del spec["evaluation"]
    spec["data"] |= {"promptsPerStep": 16, "groupSize": 4}
    spec["rollout"]["engine"] = {"name": "vLLM", "options": {"slots": 64, "threads": 1}}
    spec["rollout"]["pools"] = [{"name": "cpu", "replicas": 1}]
    spec["trainer"] |= {"backend": "FSDP", "numNodes": 2, "checkpoint": {"everySteps": 5}}
    kubectl.apply(manifest)
    job = Job(kubectl, "chain-sum")
    job.until(lambda: len(job.pods("trainer")) == 2, seconds=400)
    services = kubectl.json("get", "services", "--selector=rljob.dev/job=chain-sum,rljob.dev/role=trainer")
    assert [service["spec"]["clusterIP"] for service in services["items"]] == ["None"]
    job.until(lambda: job.condition("Succeeded").get("status") == "True", seconds=1200)
    status = job.status()
    assert status["step"] == STEPS
    assert status["policyVersion"] == STEPS
    job.audit()
