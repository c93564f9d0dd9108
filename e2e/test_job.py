"""The example job as pods on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.harness.kubectl import Kubectl
from e2e.installation import EXAMPLES
from e2e.jobs import Job

pytestmark = pytest.mark.timeout(1800)


def test_the_demo_runs_as_pods_on_two_nodes(jobs: tuple[Kubectl, Path]) -> None:
    kubectl, _folder = jobs
    kubectl("apply", f"--filename={EXAMPLES / 'chain-sum.yaml'}")
    job = Job(kubectl, "chain-sum")
    nodes = job.nodes_until("Succeeded", seconds=1200)
    assert nodes >= {"east", "west"}
    status = job.status()
    assert status["step"] == 60
    assert status["rewardMean"] > 0.6
    job.audit()
