"""Which changes of a job's status the operator reports as Kubernetes events, and which not."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_core.spec import AutoscaledPoolStatus, AutoscalingStatus, RLJobStatus
from rljob_operator.decisions.job_events import events


def status(*conditions: tuple[str, str, str], message: str = "", **fields: Any) -> RLJobStatus:
    """Conditions as type, status, reason; all with the same message."""
    found = [
        {"type": kind, "status": value, "reason": reason, "message": message}
        for kind, value, reason in conditions
    ]
    return RLJobStatus.model_validate({"conditions": found, **fields})


def waits(reason: str, message: str = "words") -> RLJobStatus:
    return status(("Ready", "False", reason), message=message)


def pools(**counts: int) -> dict[str, Any]:
    return {"pools": [{"name": name, "replicas": count} for name, count in counts.items()]}


NEW = RLJobStatus()
READY = status(("Ready", "True", "Training"))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (NEW, NEW, []),
        (NEW, READY, [("Normal", "Training")]),
        (READY, READY, []),
        (waits("Unschedulable"), READY, [("Normal", "Training")]),
        # Troubles: once for each reason, whatever becomes of the words.
        (READY, waits("Unschedulable"), [("Warning", "Unschedulable")]),
        (NEW, waits("NatsUnreachable"), [("Warning", "NatsUnreachable")]),
        (waits("Unschedulable", "one"), waits("Unschedulable", "another"), []),
        (waits("Unschedulable"), waits("ImagePullFailed"), [("Warning", "ImagePullFailed")]),
        # What every start and stop brings is no news.
        (READY, waits("CoordinatorNotReady", "0 of 1 ready"), []),
        (READY, waits("RolloutNotReady"), []),
        (READY, waits("TrainerRestarting"), []),
        (READY, waits("SuspendedByUser"), []),
        # What lasts.
        (
            READY,
            status(("Suspended", "True", "SuspendedByUser")),
            [("Normal", "SuspendedByUser")],
        ),
        (READY, status(("Succeeded", "True", "TrainingComplete")), [("Normal", "TrainingComplete")]),
        (
            READY,
            status(("Stalled", "True", "NotFinite"), ("Failed", "True", "NotFinite")),
            [("Warning", "NotFinite")],
        ),
        (READY, status(("Stalled", "True", "InvalidTemplate")), [("Warning", "InvalidTemplate")]),
        (
            status(("Failed", "True", "NotFinite")),
            status(("Failed", "True", "NotFinite")),
            [],
        ),
        # Attempts.
        (NEW, status(trainerAttempt=1), [("Normal", "TrainerStarted")]),
        (status(trainerAttempt=1), status(trainerAttempt=2), [("Normal", "TrainerRestarted")]),
        (
            status(trainerAttempt=1),
            status(("Ready", "False", "TrainerBackOff"), message="x", trainerAttempt=1, failures=1),
            [("Warning", "TrainerFailed")],
        ),
        (status(trainerNodes=0), status(trainerNodes=4), []),
        (status(trainerNodes=4), status(trainerNodes=4), []),
        (status(trainerNodes=4), status(trainerNodes=2), [("Normal", "TrainerResized")]),
        (status(trainerNodes=2), status(("Suspended", "True", "x"), trainerNodes=0), [("Normal", "x")]),
        (status(writerEpoch=0), status(writerEpoch=1), []),
        (status(writerEpoch=1), status(writerEpoch=2), [("Normal", "CoordinatorRecovered")]),
        # Pools, of a job that goes on.
        (NEW, status(**pools(a=2)), []),
        (status(**pools(a=2)), status(**pools(a=5)), [("Normal", "PoolScaled")]),
        (status(**pools(a=2)), status(**pools(a=0)), [("Normal", "PoolScaled")]),
        (status(**pools(a=2, b=1)), status(**pools(a=2, b=3)), [("Normal", "PoolScaled")]),
        (status(**pools(a=2)), status(**pools(a=2, b=3)), []),
        (
            status(**pools(a=2)),
            status(("Suspended", "True", "SuspendedByUser"), **pools(a=0)),
            [("Normal", "SuspendedByUser")],
        ),
        (status(("Suspended", "True", "SuspendedByUser"), **pools(a=0)), status(**pools(a=2)), []),
        (
            status(**pools(a=2)),
            status(("Succeeded", "True", "TrainingComplete"), **pools(a=0)),
            [("Normal", "TrainingComplete")],
        ),
    ],
)
def test_events_of_a_job(before: RLJobStatus, after: RLJobStatus, said: list[tuple[str, str]]) -> None:
    assert [(event.type, event.reason) for event in events(before, after)] == said


def test_a_change_of_the_gang_says_why() -> None:
    after = status(("TrainerReduced", "True", "Unschedulable"), message="no GPU is free", trainerNodes=2)
    (event,) = events(status(trainerNodes=4), after)
    assert event.message == "4 → 2 nodes: no GPU is free"


def test_a_scaling_says_what_became_of_which_pool() -> None:
    (event,) = events(status(**pools(a=2)), status(**pools(a=5)))
    assert event.message == "pool a: 2 → 5 engines"


@pytest.mark.parametrize(("message", "why"), [("the trainer waits", ": the trainer waits"), ("", "")])
def test_what_the_operator_scales_itself_it_says_why(message: str, why: str) -> None:
    decided = AutoscalingStatus(message=message, pools=[AutoscaledPoolStatus(name="a", replicas=5)])
    after = status(**pools(a=5, b=2)).model_copy(update={"autoscaling": decided})
    said = [event.message for event in events(status(**pools(a=2, b=1)), after)]
    assert said == [f"pool a: 2 → 5 engines{why}", "pool b: 1 → 2 engines"]
