"""What a Pod's manifest says, as kubelets, schedulers and controllers write it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import NOW

from rljob_core.failures import Failure, Reason, termination_message
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.pods import PodExit, Trouble, read_pod
from rljob_operator.names import Role


def pod(role: str = "trainer", **status: Any) -> Manifest:
    labels = {"rljob.dev/job": "sums", "rljob.dev/role": role}
    return {"kind": "Pod", "metadata": {"name": "p", "labels": labels}, "status": status}


def container(name: str = "trainer", last: Manifest | None = None, **state: Any) -> Manifest:
    found = {"name": name, "image": "worker:1", "state": state}
    return found if last is None else {**found, "lastState": {"terminated": last}}


def condition(kind: str, status: str, **more: str) -> Manifest:
    return {"type": kind, "status": status, **more}


def ended(code: int, message: str = "") -> Manifest:
    return {"exitCode": code, **({"message": message} if message else {})}


def test_a_pod_of_which_nothing_is_said_yet() -> None:
    found = read_pod({**pod(), "status": {}}, NOW)
    assert (found.role, found.pool, found.attempt) == (Role.TRAINER, None, None)
    assert (found.ready, found.terminating, found.evicted, found.lost) == (False, False, False, False)
    assert (found.exit, found.trouble) == (None, None)


NO_NODE = "0/0 nodes are available: no nodes available to schedule pods"
WAITS = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({}, None),
        ({"conditions": [condition("PodScheduled", "True")]}, None),
        (
            {"conditions": [condition("PodScheduled", "False", reason="Unschedulable", message=NO_NODE)]},
            Trouble("Unschedulable", NO_NODE),
        ),
        (
            {"conditions": [condition("PodScheduled", "False", reason="SchedulingGated")]},
            Trouble("SchedulingGated", ""),
        ),
        ({"containerStatuses": [container(waiting={"reason": "ContainerCreating"})]}, None),
        ({"containerStatuses": [container(waiting={})]}, None),
        ({"containerStatuses": [container(running={})]}, None),
        (
            {"containerStatuses": [container(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})]},
            Trouble("ImagePullFailed", "worker:1: Back-off"),
        ),
        (
            {"containerStatuses": [container(waiting={"reason": "ErrImagePull"})]},
            Trouble("ImagePullFailed", "worker:1: ErrImagePull"),
        ),
        (
            {"initContainerStatuses": [container("streams", waiting={"reason": "InvalidImageName"})]},
            Trouble("ImagePullFailed", "worker:1: InvalidImageName"),
        ),
        (
            {
                "containerStatuses": [
                    container(
                        waiting={"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}
                    )
                ]
            },
            Trouble("SecretNotFound", 'secret "hf" not found'),
        ),
        (
            {
                "containerStatuses": [
                    container(
                        waiting={
                            "reason": "CreateContainerConfigError",
                            "message": 'configmap "c" not found',
                        }
                    )
                ]
            },
            Trouble("ConfigMapNotFound", 'configmap "c" not found'),
        ),
        (
            {
                "containerStatuses": [
                    container(
                        waiting={
                            "reason": "CreateContainerConfigError",
                            "message": "couldn't find key user.creds in Secret team/hf",
                        }
                    )
                ]
            },
            Trouble("CreateContainerConfigError", "couldn't find key user.creds in Secret team/hf"),
        ),
        (
            {
                "containerStatuses": [
                    container(waiting={"reason": "RunContainerError", "message": "no such file"})
                ]
            },
            Trouble("RunContainerError", "no such file"),
        ),
        (
            {"containerStatuses": [container(last=ended(139), waiting=WAITS)]},
            Trouble("CrashLoopBackOff", "exit code 139 (SIGSEGV): it gave no message: see its log"),
        ),
        (
            {"containerStatuses": [container(last=ended(1, "Traceback\n  x\nMemoryError\n"), waiting=WAITS)]},
            Trouble("CrashLoopBackOff", "exit code 1: MemoryError"),
        ),
        (
            {"containerStatuses": [container(last=ended(4, "no model"), waiting=WAITS)]},
            Trouble("Unavailable", "no model"),
        ),
        (
            {
                "containerStatuses": [
                    container(running={}),
                    container("scorer", last=ended(137, ""), waiting=WAITS),
                ]
            },
            Trouble(
                "CrashLoopBackOff",
                "container scorer: exit code 137 (SIGKILL: out of memory?)",
            ),
        ),
        # It has been started again and does not serve yet: what was missing may still be.
        (
            {"containerStatuses": [container(last=ended(4, "no model"), running={})]},
            Trouble("Unavailable", "no model"),
        ),
        (
            {
                "containerStatuses": [container(last=ended(4, "no model"), running={})],
                "conditions": [condition("Ready", "True")],
            },
            None,
        ),
        (
            {
                "initContainerStatuses": [container("streams", last=ended(4, "n"), waiting=WAITS)],
                "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
            },
            Trouble("Unavailable", "n"),
        ),
    ],
)
def test_why_a_pod_does_not_run(status: Manifest, trouble: Trouble | None) -> None:
    assert read_pod(pod(**status), NOW).trouble == trouble


@pytest.mark.parametrize(("age", "doubtful"), [(0, True), (5.9, True), (6, False), (60, False)])
def test_a_pod_that_was_just_passed_over_is_in_no_trouble_yet(age: float, doubtful: bool) -> None:
    since = NOW - timedelta(seconds=age)
    state = condition("PodScheduled", "False", reason="Unschedulable", lastTransitionTime=since.isoformat())
    found = read_pod(pod(conditions=[state]), NOW)
    assert (found.trouble is None, found.doubtful_until is not None) == (doubtful, doubtful)
    if doubtful:
        assert found.doubtful_until == since + timedelta(seconds=6)


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"containerStatuses": [container(running={})]}, None),
        ({"containerStatuses": [container(terminated=ended(0))]}, PodExit(0, "")),
        ({"containerStatuses": [container(terminated=ended(1, "a"), last=ended(2, "b"))]}, PodExit(1, "a")),
        ({"containerStatuses": [container(last=ended(2, "b"), running={})]}, PodExit(2, "b")),
        # Of a user's sidecar nothing is said.
        ({"containerStatuses": [container("logs", terminated=ended(1, "a"))]}, None),
        (
            {"containerStatuses": [container("logs", terminated=ended(1)), container(terminated=ended(3))]},
            PodExit(3, ""),
        ),
        # Reward functions do not end the job, whatever they say.
        ({"containerStatuses": [container("scorer", terminated=ended(2, "x"))]}, None),
        # Of an init container only a failure, and only where the worker itself has not ended.
        ({"initContainerStatuses": [container("streams", terminated=ended(0))]}, None),
        (
            {"initContainerStatuses": [container("streams", terminated=ended(2, "x"))]},
            PodExit(2, "x"),
        ),
        (
            {
                "initContainerStatuses": [container("streams", last=ended(1), terminated=ended(0))],
                "containerStatuses": [container(terminated=ended(143))],
            },
            PodExit(143, ""),
        ),
        ({"initContainerStatuses": [container("streams", last=ended(1, "old"), terminated=ended(0))]}, None),
    ],
)
def test_how_a_worker_ended(status: Manifest, end: PodExit | None) -> None:
    assert read_pod(pod(**status), NOW).exit == end


@pytest.mark.parametrize(
    ("end", "fatal", "unavailable", "fenced"),
    [
        (PodExit(0, ""), None, None, False),
        (PodExit(1, "boom"), None, None, False),
        (PodExit(2, "a\nb\n"), "b", None, False),
        (PodExit(2, ""), "it gave no message: see its log", None, False),
        (PodExit(1, termination_message(Failure(Reason.INVALID_SPEC, "steps"))), "steps", None, False),
        (PodExit(3, ""), None, None, True),
        (PodExit(1, termination_message(Failure(Reason.FENCED, "attempt 2"))), None, None, True),
        (PodExit(4, "a\nno server"), None, "no server", False),
        (PodExit(4, ""), None, "it gave no message: see its log", False),
        (
            PodExit(1, termination_message(Failure(Reason.RESOURCE_MISSING, "no model"))),
            None,
            "no model",
            False,
        ),
        (PodExit(143, ""), None, None, False),
    ],
)
def test_what_an_exit_means(end: PodExit, fatal: str | None, unavailable: str | None, fenced: bool) -> None:
    assert (end.fatal and end.fatal.detail, end.unavailable, end.fenced) == (fatal, unavailable, fenced)


TAINTED = condition("DisruptionTarget", "True", reason="DeletionByTaintManager")
UNHEARD = [condition("Ready", "False"), condition("ContainersReady", "True")]


@pytest.mark.parametrize(
    ("conditions", "deadline", "lost"),
    [
        ([TAINTED, *UNHEARD], 60, True),
        ([TAINTED, *UNHEARD], None, False),  # nobody asked for its end
        (UNHEARD, 60, False),
        ([TAINTED, condition("Ready", "True"), condition("ContainersReady", "True")], 60, False),
        ([TAINTED, condition("Ready", "False"), condition("ContainersReady", "False")], 60, False),
        ([condition("DisruptionTarget", "True", reason="EvictionByEvictionAPI"), *UNHEARD], 60, False),
        ([], -29, False),
        ([], -31, True),  # a kubelet that lives would have ended it
    ],
)
def test_when_a_pod_is_lost(conditions: list[Manifest], deadline: int | None, lost: bool) -> None:
    manifest = pod(conditions=conditions)
    if deadline is not None:
        manifest["metadata"]["deletionTimestamp"] = (NOW + timedelta(seconds=deadline)).isoformat()
    assert read_pod(manifest, NOW).lost is lost


@pytest.mark.parametrize(
    ("status", "evicted"),
    [
        ({"reason": "Evicted"}, True),
        ({"conditions": [condition("DisruptionTarget", "True", reason="PreemptionByScheduler")]}, True),
        ({"conditions": [condition("DisruptionTarget", "False")]}, False),
        ({"reason": "Error"}, False),
    ],
)
def test_what_is_an_eviction(status: Manifest, evicted: bool) -> None:
    assert read_pod(pod(**status), NOW).evicted is evicted
