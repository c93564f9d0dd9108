"""How a run goes, summed up from the job's METRICS stream and its engines' heartbeats. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from rljob_core.messages import EngineSignal, StepMetrics

_RATE_SECONDS = 10.0

Kind = Literal["commit", "evaluation", "end", "other"]


def kind_of(line: StepMetrics) -> Kind:
    """What a line of the stream is about."""
    if line.finished:
        return "end"
    if line.reward_mean is not None:
        return "commit"
    return "evaluation" if line.heldout_sampled is not None else "other"


@dataclass(slots=True)
class Rate:
    """Tokens per second over the last seconds, from counters that start again at 0 with their process."""

    total: float = 0.0
    per_second: float = 0.0
    _last: dict[str, float] = field(default_factory=dict)
    _marks: deque[tuple[float, float]] = field(default_factory=deque)

    def count(self, source: str, value: float) -> None:
        """The counter of `source` says `value`."""
        before = self._last.get(source, 0.0)
        self.total += value - before if value >= before else value
        self._last[source] = value

    def forget(self, source: str) -> None:
        """A source is gone; another of its name starts at 0."""
        self._last.pop(source, None)

    def mark(self, now: float) -> None:
        """Work the rate out; to be called about once a second."""
        self._marks.append((now, self.total))
        while now - self._marks[0][0] > _RATE_SECONDS:
            self._marks.popleft()
        since, before = self._marks[0]
        if now > since:
            self.per_second = (self.total - before) / (now - since)


class RunProgress:
    """What is known about a job.

    Attributes:
        lines: of the stream, one per commit, per evaluation and for the end; in order.
        latest: the newest line; None before the first.
        engines: newest heartbeat per engine.
        rollout: tokens generated, by the engines' own counters.
    """

    def __init__(self) -> None:
        self.lines: list[StepMetrics] = []
        self.latest: StepMetrics | None = None
        self.engines: dict[str, EngineSignal] = {}
        self.rollout = Rate()
        self._seen: set[tuple[Kind, int]] = set()
        self._generated: dict[int, int] = {}

    def add(self, line: StepMetrics) -> bool:
        """Take a line of the stream; whether it says something new.

        A coordinator that takes over may publish a commit again that its predecessor published.
        """
        self._generated[line.epoch] = max(self._generated.get(line.epoch, 0), line.tokens_generated)
        if self.latest is None or line.epoch >= self.latest.epoch:
            self.latest = line
        if line.gone_back:
            self._go_back(line.version)
            return False
        key = (kind_of(line), line.version)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.lines.append(line)
        return True

    def _go_back(self, version: int) -> None:
        """The user gave up what came after the version, an end included."""
        self.lines = [line for line in self.lines if line.version <= version and not line.finished]
        self._seen = {(kind_of(line), line.version) for line in self.lines}

    def heard(self, key: str, signal: EngineSignal | None) -> None:
        """An engine's heartbeat, or that its key is gone."""
        if signal is None:
            self.engines.pop(key, None)
            self.rollout.forget(key)
            return
        self.engines[key] = signal
        self.rollout.count(key, signal.tokens)

    @property
    def commits(self) -> list[StepMetrics]:
        """One line per committed step."""
        return [line for line in self.lines if kind_of(line) == "commit"]

    @property
    def evaluations(self) -> list[StepMetrics]:
        """One line per evaluated version, the oldest version first."""
        found = [line for line in self.lines if kind_of(line) == "evaluation"]
        return sorted(found, key=lambda line: line.version)

    @property
    def end(self) -> StepMetrics | None:
        """The line that ends the job, if it has ended."""
        return next((line for line in self.lines if line.finished), None)

    @property
    def step(self) -> int:
        """Committed steps."""
        return max((line.version for line in self.lines), default=0)

    @property
    def tokens_generated(self) -> int:
        """Over all coordinators: each counts from its own start."""
        return sum(self._generated.values())

    @property
    def staleness(self) -> tuple[int | None, float | None]:
        """The largest staleness consumed, and the mean over all steps."""
        stats = [line.stats for line in self.commits if line.stats is not None]
        if not stats:
            return None, None
        return max(s.staleness_max for s in stats), fmean(s.staleness_mean for s in stats)
