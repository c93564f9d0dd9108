"""Trajectories that move from one engine to another: which might, and which are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_core.job_state import JobState, Sibling
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.liveness import Liveness
from rljob_core.trajectory import State

PATIENCE_HEARTBEATS = 10
"""Own heartbeats for which an engine keeps a slot for a trajectory that another one releases."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A trajectory that might move.

    Attributes:
        sibling: of which this is the current attempt.
        attempt: that is generated.
        step: of its buffer.
        source: its engine.
        context: tokens that it has, its prompt included.
        remaining: tokens that are expected to come.
        seconds: that these take on its engine.
    """

    sibling: Sibling
    attempt: int
    step: int
    source: EngineView
    context: float
    remaining: float
    seconds: float

    @property
    def is_valid(self) -> bool:
        """Whether its engine still generates it."""
        sibling = self.sibling
        return (
            sibling.state is State.GENERATING
            and sibling.attempt == self.attempt
            and sibling.engine == self.source.engine
        )


@dataclass(frozen=True, slots=True)
class MoveUnderWay:
    """The engine `source` is asked to release this attempt of a trajectory for the engine `target`."""

    attempt: int
    source: str
    target: str
    begun: int


@dataclass(slots=True)
class Migrations:
    """Nothing of this is in the ledger: to a new coordinator, engines have handed back what they released.

    Attributes:
        counts: how often each open trajectory was moved.
        under_way: moves, by trajectory.
        stragglers: what might move, the most remaining seconds first.
        looked: when these were found; seconds of the coordinator's clock.
    """

    counts: dict[str, int] = field(default_factory=dict)
    under_way: dict[str, MoveUnderWay] = field(default_factory=dict)
    stragglers: Sequence[Straggler] = ()
    looked: float = float("-inf")

    def begin(self, straggler: Straggler, target: EngineView, heartbeats: int) -> None:
        """Keep a slot of `target` for a straggler that its engine is asked to release."""
        name = straggler.sibling.id
        self.counts[name] = self.counts.get(name, 0) + 1
        self.under_way[name] = MoveUnderWay(
            straggler.attempt, straggler.source.engine, target.engine, heartbeats
        )
        target.expected += 1
        self.stragglers = [s for s in self.stragglers if s is not straggler]

    def end(self, trajectory: str, liveness: Liveness) -> EngineView | None:
        """Free the slot that is kept for a trajectory; returns the engine, None if nothing was kept or it is lost."""
        move = self.under_way.pop(trajectory, None)
        target = None if move is None else liveness.engines.get(move.target)
        if target is not None:
            target.expected = max(0, target.expected - 1)
            liveness.has_changed(target)
        return target

    def settle(self, state: JobState, liveness: Liveness) -> None:
        """Free the slots kept for what has ended, has gone elsewhere, or was not released for long."""
        for trajectory, move in list(self.under_way.items()):
            if not _is_coming(state.sibling(trajectory), move) or (
                liveness.heartbeats > move.begun + PATIENCE_HEARTBEATS
            ):
                self.end(trajectory, liveness)

    def forget_ended(self, state: JobState) -> None:
        """Forget how often trajectories were moved that are not open any more."""
        self.counts = {name: n for name, n in self.counts.items() if state.sibling(name) is not None}


def _is_coming(sibling: Sibling | None, move: MoveUnderWay) -> bool:
    if sibling is None:
        return False
    if sibling.state is State.GENERATING:
        return sibling.attempt == move.attempt and sibling.engine == move.source
    return sibling.state is State.RESERVED and sibling.attempt == move.attempt + 1
