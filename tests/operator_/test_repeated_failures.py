"""A job whose role fails again and again ends; one that gets further, or whose role serves, does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rljob_core.failures import Failure, Reason, termination_message
from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator.decisions.observe import Deployed, Gang, GangState, Observed
from rljob_operator.decisions.pods import Pod, PodExit, Trouble
from rljob_operator.decisions.repeated_failures import FailuresInARow, Patience, count, stuck
from rljob_operator.names import Role

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = Patience(times=4, crashed=timedelta(minutes=1), missing=timedelta(hours=1))
NO_TORCH = PodExit(1, "ModuleNotFoundError: No module named 'torch'")
NO_MODEL = PodExit(
    4, termination_message(Failure(Reason.RESOURCE_MISSING, "spec.model.uri: there is no folder /model"))
)
NO_SERVER = PodExit(4, "no nats-server answers at nats://nats:4222")
KILLED = PodExit(137, "")
STOPPED = PodExit(143, "")


class Watched:
    """A job that is looked at once a minute."""

    def __init__(self, job: RLJob) -> None:
        self.failures = FailuresInARow()
        self.seen = Observed(job, RLJobStatus(), {}, (), (), (), BEGIN)

    def look(self, *pods: Pod, **changes: object) -> str:
        now = self.seen.now + timedelta(minutes=1)
        deployed = tuple(
            Deployed(role, None, sum(pod.role is role for pod in pods), 0, 0, True) for role in Role
        )
        self.seen = replace(self.seen, now=now, pods=pods, **{"deployed": deployed, **changes})
        for _ in range(2):  # to look twice counts once
            self.failures = count(self.failures, self.seen)
        failure = stuck(self.failures, self.seen, PATIENCE)
        assert failure is None or failure.reason is Reason.NO_PROGRESS
        return "" if failure is None else failure.detail


@pytest.fixture
def watched(make_job: Callable[..., RLJob]) -> Watched:
    return Watched(make_job())


def pod(role: Role, end: PodExit | None, ends: int, *, name: str = "a", ready: bool = False) -> Pod:
    return Pod(name, role, None, None, ready, terminating=False, evicted=False, exit=end, ends=ends)


@pytest.mark.parametrize(
    ("role", "end", "looks", "words"),
    [
        (Role.ROLLOUT, NO_TORCH, 4, "rollout: exit code 1: ModuleNotFoundError: No module named 'torch'"),
        (Role.COORDINATOR, KILLED, 4, "coordinator: exit code 137 (SIGKILL: out of memory?)"),
        (Role.REWARD, NO_MODEL, 61, "reward: spec.model.uri: there is no folder /model"),
        (Role.COORDINATOR, NO_SERVER, 61, "coordinator: no nats-server answers at nats://nats:4222"),
        (Role.COORDINATOR, STOPPED, 0, ""),
    ],
)
def test_it_ends_after_so_many_failures_in_so_much_time(
    watched: Watched, role: Role, end: PodExit, looks: int, words: str
) -> None:
    said = [watched.look(pod(role, end, ends)) for ends in range(1, 100)]
    assert next((n for n, message in enumerate(said, 1) if message), 0) == looks
    if looks:
        assert said[looks - 1] == f"{words}; it has failed {looks} times in a row, and the job got no further"


def test_nothing_counts_of_pods_that_go(watched: Watched) -> None:
    """All that a suspended job, or a pool of no engines, still has are pods that have ended and are being deleted."""
    going = replace(pod(Role.COORDINATOR, KILLED, 1), terminating=True)
    assert watched.look(going, deployed=()) == ""


def test_attempts_of_the_trainer_count_for_which_something_was_missing(watched: Watched) -> None:
    def attempt(number: int, end: PodExit) -> str:
        gang = Gang(number, GangState.FAILED, 1, 0, 0, "", False, None, BEGIN, "")
        ended = replace(pod(Role.TRAINER, end, 1), attempt=number)
        said = watched.look(ended, gangs=(gang,))
        assert not watched.look(gangs=())
        return said

    assert not any(attempt(number, NO_TORCH) for number in range(1, 50))  # backoffLimit counts these
    said = [attempt(number, NO_MODEL) for number in range(50, 100)]
    assert next(number for number, message in enumerate(said, 1) if message) == 31
    assert said[30].startswith("trainer: spec.model.uri: ")


@pytest.mark.parametrize("saves", ["step", "outage", "ready", "other pod", "site", "one serves"])
def test_it_goes_on_while_it_gets_further_or_may(watched: Watched, saves: str) -> None:
    for ends in range(1, 50):
        failing, others, changes = pod(Role.ROLLOUT, NO_TORCH, ends), list[Pod](), dict[str, object]()
        match saves if ends % 3 == 0 else "":
            case "step":
                changes["status"] = RLJobStatus(step=ends)
            case "outage":
                changes["outage"] = Trouble("NatsDown", "")
            case "ready":
                failing = replace(failing, ready=True)
        match saves:
            case "other pod":  # which has not begun
                others = [pod(Role.ROLLOUT, None, 0, name="b")]
            case "one serves":
                others = [pod(Role.ROLLOUT, None, 0, name="b", ready=True)]
            case "site":
                changes["deployed"] = (Deployed(Role.ROLLOUT, "west", 2, 0, 0, True),)
        assert not watched.look(failing, *others, **{"outage": None, **changes})
