"""Jobs that name a queue of Kueue on a cluster that has no Kueue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Operator, manifest
from tests.waiting import until

from rljob_operator.names import QUEUE_NAME

pytestmark = pytest.mark.xdist_group("operator")


@pytest.fixture
def operator(
    crds: SharedControlPlane, namespace: str, nats_server: EmbeddedServer, tmp_path: Path
) -> Iterator[Operator]:
    with Operator(crds.kubeconfig, nats_server.url, namespace, tmp_path / "operator.log") as running:
        yield running


def test_a_job_waits_for_it_in_words_until_the_label_goes(operator: Operator, watched: Namespace) -> None:
    job = manifest("queued")
    watched.apply({**job, "metadata": {"name": "queued", "labels": {QUEUE_NAME: "team"}}})
    until(lambda: (watched.condition("queued", "Suspended") or {}).get("reason") == "QueueUnreadable")
    message = (watched.condition("queued", "Ready") or {})["message"]
    assert "an administrator installs Kueue 0.15 or newer, or remove the label" in message
    assert watched.get("rljob", "queued")["status"]["state"] == "QueueUnreadable"  # type: ignore[index]
    assert not [name for name in watched.names("deployment") if name.startswith("queued-")]
    watched.patch("rljob", "queued", {"metadata": {"labels": {QUEUE_NAME: None}}})
    watched.existing("deployment", "queued-coordinator")


def test_a_job_that_runs_goes_on(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest("running"))
    trainer = watched.existing("job", "running-trainer-1")["metadata"]["uid"]
    until(lambda: any(name.startswith("running-trainer-1-") for name in watched.names("pod")))
    watched.patch("rljob", "running", {"metadata": {"labels": {QUEUE_NAME: "team"}}})
    watched.patch("rljob", "running", {"spec": {"backoffLimit": 7}})
    until(
        lambda: (
            "QueueUnreadable" in operator.log.read_text() or "does not know Kueue" in operator.log.read_text()
        )
    )
    assert watched.existing("job", "running-trainer-1")["metadata"]["uid"] == trainer
    assert (watched.condition("running", "Suspended") or {})["status"] == "False"
