"""Episodes that are played by pods of their own, which are killed, drained and scaled while the job trains."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import AnyCluster
from e2e.harness.kubectl import Kubectl
from e2e.harness.network_policies import enforced
from e2e.jobs import Job, example

pytestmark = pytest.mark.timeout(1800)


def test_episodes_are_played_while_their_pods_are_killed_drained_and_scaled(
    jobs: tuple[Kubectl, Path], installed: AnyCluster
) -> None:
    kubectl, _folder = jobs
    manifest = example("guessing-game")
    manifest["spec"]["steps"] = 100_000
    manifest["spec"]["data"] |= {"promptsPerStep": 4, "groupSize": 4}
    manifest["spec"]["rollout"]["environment"]["replicas"] = 2
    with ExitStack() as policies:
        if installed.own is not None:
            policies.enter_context(enforced(installed.own))
        kubectl.apply(manifest)
        job = Job(kubectl, "guessing-game")
        job.advances(1, seconds=600)
        assert job.status()["environment"] == "2/2"
        workers = {pod["metadata"]["uid"] for role in ("coordinator", "rollout") for pod in job.pods(role)}

        first, second = names(job)
        kubectl("delete", "pod", first, "--grace-period=0", "--force")  # as a node that is lost
        job.advances(1, seconds=300)
        job.until(lambda: len(ready(job)) == 2, seconds=300)
        kubectl("delete", "pod", second, "--wait=false")
        job.advances(1, seconds=300)
        job.until(lambda: second not in names(job) and len(ready(job)) == 2, seconds=300)

        scale(kubectl, 3)
        job.until(lambda: job.status().get("environment") == "3/3", seconds=300)
        scale(kubectl, 0)
        job.until(lambda: not names(job), seconds=300)
        job.until(lambda: job.condition("Ready").get("reason") == "EnvironmentNotReady", seconds=300)
        scale(kubectl, 1)
        job.advances(1, seconds=300)
        now = {pod["metadata"]["uid"] for role in ("coordinator", "rollout") for pod in job.pods(role)}
        assert now == workers
        change(kubectl, {"steps": job.status()["step"] + 5})
        job.nodes_until("Succeeded", seconds=1200)
        job.audit()


def names(job: Job) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in job.pods("environment"))


def ready(job: Job) -> list[dict[str, Any]]:
    return [
        pod
        for pod in job.pods("environment")
        if "deletionTimestamp" not in pod["metadata"]
        and {"type": "Ready", "status": "True"}.items()
        <= next((c for c in pod["status"].get("conditions", []) if c["type"] == "Ready"), {}).items()
    ]


def scale(kubectl: Kubectl, replicas: int) -> None:
    change(kubectl, {"rollout": {"environment": {"replicas": replicas}}})


def change(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    kubectl("patch", "rljob", "guessing-game", "--type=merge", f"--patch={json.dumps({'spec': spec})}")
