"""The boundaries between the phases of a step, at which the fault tests kill processes.

A step takes only milliseconds from one boundary to the next. To kill a process exactly at a boundary, a test watches
the job's subjects and files for it, and stops (SIGSTOP) the process that would act next. While that process is stopped,
the test verifies that nothing has passed the boundary, and kills a process. If something has passed the boundary, the
test resumes the stopped process and waits for the next occurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from observed_messages import Seen, Sighting, WeightsWritten, part_of
from tests.night import NIGHT, chance

from rljob_core.messages import EngineSignal, RewardResult, StepProposed, VersionAnnounced
from rljob_core.records import FedMicroBatch, MicroBatchAssigned, StepCommitted
from rljob_core.trajectory import is_evaluation
from rljob_runtime.messaging.summaries import PayloadSummary

ROLES = ("nats-server", "coordinator", "trainer", "reward", "rollout")

Key = Any  # the thing that reaches a boundary: an attempt of a trajectory, a micro-batch, a version


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary between two phases of a step.

    Attributes:
        name: name of the boundary in `docs/faults.md`.
        description: what has happened at the boundary, and what has not.
        held: the role that would act next and is stopped; "" if none has to be stopped.
        sees: returns the key of a sighting that shows this boundary, else None.
        untouched: whether nothing was seen that comes after the boundary.
        lands: whether the ledger, if it ends here, shows that the job was at this boundary.
        nears: like `sees`, for an earlier sighting, after which the held role has nothing to do until the boundary.
    """

    name: str
    description: str
    held: str
    sees: Callable[[Sighting, Seen], Key | None]
    untouched: Callable[[Key, Seen], bool]
    lands: Callable[[Key, Seen], bool]
    nears: Callable[[Sighting, Seen], Key | None] = lambda said, seen: None


def planned() -> dict[str, tuple[str, ...]]:
    """Return the roles to kill at each boundary, by the boundary's name.

    The tests of a commit kill one of the five roles at each boundary, so each role at two of the ten boundaries;
    `make nightly` kills every role at every boundary.
    """
    if NIGHT:
        return {boundary.name: ROLES for boundary in BOUNDARIES}
    order = chance("roles at boundaries").sample(ROLES, len(ROLES))
    return {boundary.name: (order[number % len(ROLES)],) for number, boundary in enumerate(BOUNDARIES)}


def _stored(said: Sighting, seen: Seen) -> Key | None:
    if not isinstance(said, PayloadSummary) or is_evaluation(said.trajectory):
        return None
    attempt = said.trajectory, said.attempt
    return attempt if attempt in seen.dispatched else None


def _scored(said: Sighting, seen: Seen) -> Key | None:
    if not isinstance(said, RewardResult) or is_evaluation(said.trajectory):
        return None
    attempt = said.trajectory, said.attempt
    return attempt if attempt in seen.generated else None


def _assigned(said: Sighting, seen: Seen) -> Key | None:
    return part_of(said) if isinstance(said, MicroBatchAssigned) else None


def _fed(said: Sighting, seen: Seen) -> Key | None:
    return part_of(said) if isinstance(said, FedMicroBatch) and part_of(said) in seen.assigned else None


def _version_of(kind: type, version: Callable[[Any], int]) -> Callable[[Sighting, Seen], Key | None]:
    def sees(said: Sighting, seen: Seen) -> Key | None:
        return version(said) if isinstance(said, kind) else None

    return sees


def _weights(*, hidden: bool) -> Callable[[Sighting, Seen], Key | None]:
    def sees(said: Sighting, seen: Seen) -> Key | None:
        return said.version if isinstance(said, WeightsWritten) and said.hidden is hidden else None

    return sees


def _swapped(said: Sighting, seen: Seen) -> Key | None:
    if not isinstance(said, EngineSignal) or said.version != seen.announced:
        return None
    return said.version if said.version > seen.engines.get(said.engine, said.version) else None


def _no_engine_has(version: Key, seen: Seen) -> bool:
    return all(served < version for served in seen.engines.values())


def _closed(version: Key, seen: Seen) -> bool:
    """Whether the whole batch of the version's step is assigned, and the version is not committed."""
    return seen.committed == version - 1 and seen.batch_closed


def _is_newest(version: Key, seen: Seen) -> bool:
    return bool(seen.committed == version)


BOUNDARIES = (
    Boundary(
        "payload stored",
        "a trajectory's payload is in its stream; the ledger does not know it",
        "coordinator",
        _stored,
        lambda key, seen: key not in seen.generated,
        lambda key, seen: key in seen.dispatched and key not in seen.generated,
    ),
    Boundary(
        "scored",
        "a trajectory's reward is in its stream; the ledger does not know it",
        "coordinator",
        _scored,
        lambda key, seen: key not in seen.rewarded,
        lambda key, seen: key in seen.generated and key not in seen.rewarded,
    ),
    Boundary(
        "assigned",
        "a micro-batch is in the ledger; it was not sent to the trainer",
        "coordinator",
        _assigned,
        lambda key, seen: key not in seen.sent,
        lambda key, seen: key in seen.assigned and seen.committed == key[0],
    ),
    Boundary(
        "fed",
        "a micro-batch is in the trainer's own log and its backward pass is running; no step is proposed",
        "trainer",
        _fed,
        lambda key, seen: seen.proposed <= key[0],
        lambda key, seen: key in seen.assigned and seen.committed == key[0],
    ),
    Boundary(
        "weights written",
        "a version's tensors are being written, in a hidden folder",
        "trainer",
        _weights(hidden=True),
        lambda version, seen: seen.proposed < version,
        _closed,
    ),
    Boundary(
        "manifest durable",
        "a version's tensors and manifest are durable; they are not proposed yet",
        "trainer",
        _weights(hidden=False),
        lambda version, seen: seen.proposed < version,
        _closed,
    ),
    Boundary(
        "proposed",
        "the trainer's proposal is in the coordinator's queue; the ledger does not know it",
        "coordinator",
        _version_of(StepProposed, lambda said: said.proposal.version),
        lambda version, seen: seen.committed < version,
        _closed,
        nears=_weights(hidden=False),
    ),
    Boundary(
        "committed",
        "the commit is in the ledger; the version is not announced",
        "coordinator",
        _version_of(StepCommitted, lambda said: said.version),
        lambda version, seen: seen.announced < version,
        _is_newest,
    ),
    Boundary(
        "announced",
        "the version is announced; no engine has loaded it",
        "rollout",
        _version_of(VersionAnnounced, lambda said: said.version),
        _no_engine_has,
        _is_newest,
    ),
    Boundary(
        "swapped",
        "an engine reports that it has loaded the version",
        "trainer",
        _swapped,
        lambda version, seen: seen.proposed <= version,
        _is_newest,
    ),
)
