"""The API server stops and restarts: every job ends as it should, and the operator keeps running."""

from __future__ import annotations

import pytest
from e2e.harness.control_plane import ControlPlane
from operators import Namespace, Operator, children_of, manifest
from own_control_plane import operator_there, own_control_plane
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("autoscaling")  # the other one with a control plane of its own


control_plane, watched = own_control_plane("restarts")
operator = operator_there()


def runs(watched: Namespace, *jobs: str) -> bool:
    """These jobs have all their children, and no other job has any."""
    wanted: set[str] = set()
    for name in jobs:
        found = watched.get("rljob", name) or {}
        wanted |= children_of(name, attempt=found.get("status", {}).get("trainerAttempt", 0))
    return watched.children() == wanted


@pytest.mark.nightly  # e2e/test_faults.py has a job that outlives its API server, for every commit
def test_jobs_continue_after_restarts_of_the_api_server(
    control_plane: ControlPlane, operator: Operator, watched: Namespace
) -> None:
    pid = operator.pid
    watched.apply(manifest("first"))
    watched.apply(manifest("second"))
    until(lambda: runs(watched, "first", "second"))
    before = operator.requests()
    watched.apply(manifest("third"))
    until(lambda: operator.requests() >= before + 3)  # it is being created
    watched("delete", "rljob", "second", "--wait=false")
    control_plane.restart_api_server(kill=True, down_seconds=2.0)
    assert operator.status("healthz") == 200
    # Kubernetes' own controllers, which remove what the second one had, take their time to connect again.
    until(lambda: runs(watched, "first", "third"), seconds=400)
    until(lambda: watched.get("rljob", "second") is None)
    assert watched.existing("rljob", "first")["status"]["trainerAttempt"] == 1

    # Its watches live: of a job's spec, of its children.
    control_plane.restart_api_server()
    watched.patch("rljob", "first", {"spec": {"algorithm": {"learningRate": 0.5}}})
    until(lambda: watched.get("job", "first-trainer-2"))
    uid = watched.existing("deployment", "third-reward")["metadata"]["uid"]
    watched("delete", "deployment", "third-reward", "--wait=false")
    until(
        lambda: (
            (watched.get("deployment", "third-reward") or {"metadata": {"uid": uid}})["metadata"]["uid"]
            != uid
        )
    )
    assert (operator.pid, operator.runs, operator.status("healthz")) == (pid, True, 200)


def test_what_was_removed_while_the_api_server_was_not_to_be_reached_is_made_again(
    control_plane: ControlPlane, operator: Operator, watched: Namespace
) -> None:
    watched.apply(manifest())
    until(lambda: runs(watched, "sums"))
    uid = watched.existing("configmap", "sums-config")["metadata"]["uid"]
    control_plane.restart_api_server(kill=True)
    watched("delete", "configmap", "sums-config", "--wait=false")  # as a rule before the watches are back
    until(
        lambda: (
            (watched.get("configmap", "sums-config") or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid
        )
    )
    until(lambda: runs(watched, "sums"))
