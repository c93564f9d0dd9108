"""An elastic trainer on a real API server with its scheduler and controllers; the test does what kubelets do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from nodes_alone import Nodes
from operators import Namespace, Object, Operator, manifest
from own_control_plane import operator_there, own_control_plane
from reporting_coordinator import coordinator

pytestmark = pytest.mark.xdist_group("operator")


# Nodes would have room for the pods of other tests. The operator waits two seconds for a gang's nodes.
control_plane, watched = own_control_plane("nodes")
operator = operator_there(RLJOB_GANG_SECONDS="2")


def elastic(**pod: Any) -> Object:
    """A job whose gang has three pods, or two; each takes a node."""
    container = {"name": "trainer", "resources": {"requests": {"cpu": "2"}}}
    return manifest(
        model={"uri": "/model"},
        weights={"uri": "/weights"},
        trainer={
            "numNodes": 3,
            "minNodes": 2,
            "numProcPerNode": 4,
            "checkpoint": {"uri": "/checkpoints"},
            "template": {"spec": {"containers": [container], **pod}},
        },
    )


def gang(watched: Namespace) -> tuple[str, int] | None:
    """The trainer's Job and its pods."""
    names = watched.names("job")
    job = watched.get("job", names[0]) if len(names) == 1 else None
    return None if job is None else (job["metadata"]["name"], job["spec"]["completions"])


def reason(watched: Namespace) -> tuple[str, str]:
    found = watched.condition("sums", "TrainerReduced") or {}
    return found.get("status", ""), found.get("reason", "")


def trains_until(
    nodes: Nodes, watched: Namespace, url: str, attempt: int, condition: Callable[[], bool]
) -> None:
    """The gang of the attempt commits steps until something holds."""

    def after_kubelets() -> bool:
        nodes.kubelets()
        return condition()

    async def trains() -> None:
        async with coordinator(watched, url, {}, attempt=attempt) as job:
            await job.report_until(after_kubelets)

    asyncio.run(trains())


def test_a_gang_follows_the_nodes_that_there_are(
    operator: Operator, watched: Namespace, nats_server: EmbeddedServer
) -> None:
    nodes = Nodes(watched, "a", "b")
    watched.apply(elastic())
    nodes.until(lambda: gang(watched) == ("sums-trainer-2", 2))
    assert reason(watched) == ("True", "Unschedulable")
    (event,) = watched.events("sums", "TrainerResized")
    assert event.startswith("3 → 2 nodes: 2 of 3 nodes have room for attempt 1: 0/2 nodes are available: ")
    assert "2 Insufficient cpu" in event
    status = watched.existing("rljob", "sums")["status"]
    assert (status["trainerNodes"], status["trainerRanks"]) == (2, 8)

    nodes.add("c")
    trains_until(nodes, watched, nats_server.url, 2, lambda: gang(watched) == ("sums-trainer-3", 3))
    nodes.until(lambda: reason(watched) == ("False", "AllNodes"))

    nodes.lose("c")
    # Attempt 4 wants all three again, for as long as a gang waits for its nodes.
    nodes.until(lambda: gang(watched) == ("sums-trainer-5", 2))
    words = [event.partition(":")[0] for event in watched.events("sums", "TrainerResized")]
    assert words == ["3 → 2 nodes", "2 → 3 nodes", "3 → 2 nodes"]
    assert watched.existing("rljob", "sums")["status"]["failures"] == 0
    for name in ("a", "b"):
        nodes.lose(name)


def test_a_gang_fits_into_a_quota(operator: Operator, watched: Namespace) -> None:
    nodes = Nodes(watched, "a", "b", "c")
    scope = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["gangs"]}]}
    for created in (
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "value": 1,
            "preemptionPolicy": "Never",
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "spec": {"hard": {"pods": "2"}, "scopeSelector": scope},
        },
    ):
        watched.kubectl(
            "create", "--filename=-", input_text=json.dumps(created | {"metadata": {"name": "gangs"}})
        )
    nodes.until(lambda: "used" in (watched.get("resourcequota", "gangs") or {}).get("status", {}))
    watched.apply(elastic(priorityClassName="gangs"))
    nodes.until(lambda: gang(watched) == ("sums-trainer-2", 2))
    nodes.until(
        lambda: (watched.condition("sums", "TrainerReduced") or {}).get("message", "").endswith("used up?")
    )
    for name in ("a", "b", "c"):
        nodes.lose(name)
