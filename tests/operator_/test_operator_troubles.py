"""What only the operator sees of a job that does not go on: it says so, once, and takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, children_of, manifest
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("operator")


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that a test may stop."""
    server = EmbeddedServer(tmp_path / "nats")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())


@pytest.fixture
def operator(
    crds: SharedControlPlane, watched: Namespace, nats: EmbeddedServer, tmp_path: Path
) -> Iterator[Operator]:
    with Operator(crds.kubeconfig, nats.url, watched.name, tmp_path / "operator.log") as running:
        yield running


def test_a_request_that_is_never_answered_holds_up_nothing_for_long(
    crds: SharedControlPlane, nats: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with (
        ApiProxy(crds.kubeconfig, tmp_path) as proxy,
        Operator(proxy.kubeconfig, nats.url, watched.name, log) as running,
    ):
        proxy.hold(
            lambda method, path: method == "PATCH" and path.endswith("/deployments/sums-reward"), every=True
        )
        watched.apply(manifest())
        until(proxy.held.is_set)
        watched.apply({**manifest(), "metadata": {"name": "others"}})
        until(lambda: children_of("others") <= watched.children())
        until(lambda: "/deployments/sums-reward: no answer in time" in log.read_text())
        assert watched.get("deployment", "sums-reward") is None
        proxy.go()
        until(lambda: watched.children() == children_of("sums") | children_of("others"))
        assert running.status("healthz") == 200


def ready(watched: Namespace) -> Object:
    return watched.condition("sums", "Ready") or {"reason": "", "status": ""}


def ready_when_pods_run(watched: Namespace) -> bool:
    """Asked again and again: a controller may just be making pods, or removing those that are too many."""
    watched.pods_run()
    return watched.is_true("sums", "Ready")


def looked_at_again(watched: Namespace, operator: Operator) -> None:
    """What others change makes the operator look."""
    for number in range(3):
        watched("scale", "deployment", "sums-reward", "--replicas=3")
        until(lambda: watched.existing("deployment", "sums-reward")["spec"]["replicas"] == 1)
        watched("label", "configmap", "sums-config", "--overwrite", f"number={number}")


def test_pods_that_fit_on_no_node_are_reported_once(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest())
    until(lambda: watched.children() == children_of("sums"))
    until(lambda: ready(watched)["reason"] == "Unschedulable")
    assert ready(watched)["status"] == "False"
    assert "no nodes available" in ready(watched)["message"]

    def of_pool() -> Object:
        status = watched.existing("rolloutpool", "sums-rollout-cpu").get("status", {})
        found: Object = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
        return found

    until(lambda: of_pool().get("reason") == "Unschedulable")
    assert of_pool()["status"] == "False"
    assert of_pool()["message"].startswith("sums-rollout-cpu-")
    assert "no nodes available" in of_pool()["message"]
    looked_at_again(watched, operator)
    (message,) = watched.events("sums", "Unschedulable")
    assert "no nodes available" in message
    until(lambda: ready_when_pods_run(watched))
    until(lambda: of_pool()["status"] == "True")
    assert watched.condition("sums", "Reconciling")["status"] == "False"
    looked_at_again(watched, operator)
    assert len(watched.events("sums", "Unschedulable")) == 1


def test_a_nats_server_that_does_not_answer_is_reported_once(
    operator: Operator, watched: Namespace, nats: EmbeddedServer
) -> None:
    watched.apply(manifest())
    until(lambda: watched.children() == children_of("sums"))
    until(lambda: len(watched.names("pod")) == 5)
    until(lambda: ready_when_pods_run(watched))
    asyncio.run(nats.kill())
    until(lambda: ready(watched)["reason"] == "NatsUnreachable")
    assert ready(watched)["status"] == "False"
    assert nats.url in ready(watched)["message"]
    looked_at_again(watched, operator)
    assert ready(watched)["reason"] == "NatsUnreachable"
    assert len(watched.events("sums", "NatsUnreachable")) == 1
    # An operator that starts meanwhile says the same, and lives.
    operator.stop()
    operator.start()
    looked_at_again(watched, operator)
    until(lambda: ready(watched)["reason"] == "NatsUnreachable")
    assert operator.status("healthz") == 200
    asyncio.run(nats.start())
    until(lambda: watched.is_true("sums", "Ready"))
    assert len(watched.events("sums", "NatsUnreachable")) <= 2
    assert watched.existing("rljob", "sums")["status"]["trainerAttempt"] == 1
