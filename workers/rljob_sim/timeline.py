"""What engines and trainer do over the time of a job, as lanes of phases: gaps between them are the bubbles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

GENERATING, WAITING, SWAPPING = "generating", "waiting for weights", "swapping"
"""Phases of an engine. Between them it has no work."""
TRAINING, PUBLISHING = "training", "publishing"
"""Phases of the trainer. Between them it waits for groups."""
TRAINER = "trainer"
"""The trainer's lane; those of engines have the engines' names."""


@dataclass(frozen=True, slots=True)
class LanePhase:
    """A time in which a lane did one thing.

    Attributes:
        lane: `TRAINER` or the engine's name.
        what: one of the names above.
        start, seconds: when it began, since the job's start, and how long it took.
        detail: the version of the weights, the step.
    """

    lane: str
    what: str
    start: float
    seconds: float
    detail: dict[str, int]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """From this time on, an engine runs so many sequences."""

    lane: str
    time: float
    running: int


@dataclass(slots=True)
class Timeline:
    """The phases of a job, in the order in which they end.

    Attributes:
        phases: of all lanes.
        occupancy: of all engines, each time that it changes.
        commits: when steps were committed, by the version that they made.
    """

    phases: list[LanePhase] = field(default_factory=list)
    occupancy: list[Occupancy] = field(default_factory=list)
    commits: dict[int, float] = field(default_factory=dict)
    _open: dict[str, tuple[str, float, dict[str, int]]] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)

    @property
    def lanes(self) -> list[str]:
        """The trainer's first, then those of engines by their names."""
        found = {phase.lane for phase in self.phases} | {count.lane for count in self.occupancy}
        return sorted(found, key=lambda lane: (lane != TRAINER, lane))

    def add(self, lane: str, what: str, start: float, seconds: float, **detail: int) -> None:
        """Add a phase that is known as a whole."""
        if seconds > 0:
            self.phases.append(LanePhase(lane, what, start, seconds, detail))

    def enter(self, lane: str, time: float, what: str, **detail: int) -> None:
        """From now on the lane does this, "" for nothing; no change if it did the same before."""
        before = self._open.get(lane)
        if before is not None and (before[0], before[2]) == (what, detail):
            return
        self._close(lane, time)
        if what:
            self._open[lane] = what, time, detail

    def count(self, lane: str, time: float, running: int) -> None:
        """From now on the engine runs so many sequences."""
        if self._running.get(lane, 0) != running:
            self._running[lane] = running
            self.occupancy.append(Occupancy(lane, time, running))

    def end(self, time: float) -> None:
        """The job has ended: end all phases."""
        for lane in list(self._open):
            self._close(lane, time)
        for lane in list(self._running):
            self.count(lane, time, 0)

    def of(self, lane: str) -> Iterator[LanePhase]:
        """The phases of one lane, in order."""
        return (phase for phase in self.phases if phase.lane == lane)

    def _close(self, lane: str, time: float) -> None:
        if (open_ := self._open.pop(lane, None)) is not None:
            what, start, detail = open_
            self.add(lane, what, start, time - start, **detail)
