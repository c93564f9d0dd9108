"""What only the operator can see becomes a condition that says so, and heals by itself once it is mended.

The tests run in their order, all but the last on the same job. How long each took, from the change until the
condition, is logged.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from e2e.conftest import AnyCluster
from e2e.installation import EXAMPLES, SYSTEM, job_namespace
from e2e.jobs import Job, emulated_example, long_example

pytestmark = pytest.mark.timeout(600)

log = logging.getLogger(__name__)

MODEL = "models/chain-sum"
LABEL = "rljob.dev/e2e"


@pytest.fixture(scope="module")
def place(installed: AnyCluster) -> Iterator[tuple[Job, Path]]:
    """A job, and the folder behind its claim."""
    manifest = long_example("frail")
    spec = manifest["spec"]
    spec["model"]["uri"] = "pvc://rljob/model"
    spec["trainer"]["checkpoint"] = {"everySteps": 100_000}  # which would want the model's tokenizer
    with job_namespace(installed.kubectl) as (kubectl, folder):
        shutil.copytree(EXAMPLES / MODEL, folder / "model")
        kubectl.apply(manifest)
        job = Job(kubectl, "frail")
        job.advances()
        yield job, folder


def patch_reward(job: Job, template: dict[str, Any] | None) -> None:
    patch = json.dumps({"spec": {"reward": {"template": template}}})
    job.kubectl("patch", "rljob", job.name, "--type=merge", f"--patch={patch}")


def container(**changes: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "reward", **changes}]}}


def says(job: Job, reason: str, words: str, since: float) -> None:
    """Wait for the condition."""

    def message_of_the_job() -> str:
        ready = job.condition("Ready")
        about = ready.get("status") == "False" and ready["reason"] == reason and words in ready["message"]
        return ready["message"] if about else ""

    message = job.until(message_of_the_job, seconds=400)
    log.info("%s after %.1f s: %s", reason, time.monotonic() - since, message)
    job.until(lambda: reason in job.event_reasons(), seconds=240)


def heals(job: Job, since: float) -> None:
    job.until(lambda: job.condition("Ready").get("status") == "True", seconds=400)
    log.info("healed after %.1f s", time.monotonic() - since)


def test_a_missing_secret(place: tuple[Job, Path]) -> None:
    job, _ = place
    key = {"name": "score-key", "key": "token"}
    since = time.monotonic()
    patch_reward(job, container(env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": key}}]))
    says(job, "SecretNotFound", 'secret "score-key" not found', since)
    since = time.monotonic()
    job.kubectl("create", "secret", "generic", "score-key", "--from-literal=token=t")
    heals(job, since)


def test_an_image_that_nobody_has(place: tuple[Job, Path]) -> None:
    job, _ = place
    since = time.monotonic()
    patch_reward(job, container(image="localhost:1/nobody/has:it"))
    says(job, "ImagePullFailed", "localhost:1/nobody/has:it", since)
    since = time.monotonic()
    patch_reward(job, None)
    heals(job, since)


def test_a_pod_that_fits_nowhere(installed: AnyCluster, place: tuple[Job, Path]) -> None:
    job, _ = place
    since = time.monotonic()
    patch_reward(job, {"spec": {"nodeSelector": {LABEL: "fits"}}})
    says(job, "Unschedulable", "node affinity/selector", since)
    since = time.monotonic()
    installed.kubectl("label", "nodes", "--all", f"{LABEL}=fits")
    try:
        heals(job, since)
    finally:
        patch_reward(job, None)
        installed.kubectl("label", "nodes", "--all", f"{LABEL}-")


def test_a_missing_model(place: tuple[Job, Path]) -> None:
    job, folder = place
    job.advances()
    away = (folder / "model").rename(folder / "elsewhere")
    since = time.monotonic()
    try:
        job.kubectl("delete", "pod", "--selector=rljob.dev/role=rollout", "--wait=false")
        says(job, "Unavailable", "holds no Hugging Face model", since)
    finally:
        since = time.monotonic()
        away.rename(folder / "model")
    heals(job, since)


def test_a_storage_that_takes_no_more(place: tuple[Job, Path]) -> None:
    job, folder = place
    job.advances()
    (weights,) = (folder / "weights").iterdir()
    since = time.monotonic()
    weights.chmod(0o555)  # its owner, who is not root, may read on
    try:
        says(job, "Unavailable", "cannot write the weights of version", since)
    finally:
        since = time.monotonic()
        weights.chmod(0o755)
    heals(job, since)
    job.advances()


def test_a_nats_server_that_is_away(installed: AnyCluster, place: tuple[Job, Path]) -> None:
    job, _ = place
    system = installed.kubectl.within(SYSTEM)
    since = time.monotonic()
    system("scale", "statefulset/nats", "--replicas=0")
    try:
        says(job, "NatsUnreachable", "no nats-server answers", since)
    finally:
        since = time.monotonic()
        system("scale", "statefulset/nats", "--replicas=1")
    heals(job, since)
    job.advances()


def test_a_trainer_that_fails_leaves_its_log(place: tuple[Job, Path]) -> None:
    """The command in the condition shows it although the job has ended, while the job exists."""
    kubectl = place[0].kubectl
    manifest = emulated_example("failing")
    manifest["spec"]["trainer"]["options"] = {"stepSeconds": "soon"}
    kubectl.apply(manifest)
    job = Job(kubectl, "failing")

    def end() -> str:
        over = job.condition("Failed"), job.condition("Reconciling")
        return over[0]["message"] if [c.get("status") for c in over] == ["True", "False"] else ""

    message = until(end, every=1.0, shown=job.seen)
    assert {pod["metadata"]["labels"]["rljob.dev/role"] for pod in job.pods()} == {"trainer"}
    command = re.search(r"log: kubectl (.* --tail=-1), the trainer's while the job exists", message)
    assert command is not None, message
    assert "spec.trainer.options" in kubectl(*command[1].split())
    kubectl("delete", "rljob", job.name, "--timeout=300s")
    until(lambda: not job.pods(), every=1.0, shown=job.seen)
