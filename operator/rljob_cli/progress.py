"""How a run goes, summed up from the job's METRICS stream and its engines' heartbeats. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from rljob_core.messages import EngineSignal, StepMetrics

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
    """Tokens per second from a counter that starts again at 0 with its process, over a few seconds."""

    total: float = 0.0
    per_second: float = 0.0
    _last: dict[str, float] = field(default_factory=dict)
    _mark: tuple[float, float] | None = None

    def count(self, source: str, value: float) -> None:
        """The counter of `source` says `value`."""
        self.total += value - self._last.get(source, 0.0) if value >= self._last.get(source, 0.0) else value
        self._last[source] = value

    def forget(self, source: str) -> None:
        """A source is gone; another of its name starts at 0."""
        self._last.pop(source, None)

    def mark(self, now: float) -> None:
        """Work the rate out, from one call to the next one a second or more later."""
        if self._mark is None:
            self._mark = (now, self.total)
        elif now - self._mark[0] >= 1.0:
            since, before = self._mark
            self.per_second = (self.total - before) / (now - since)
            self._mark = (now, self.total)


class Progress:
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
        key = (kind_of(line), line.version)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.lines.append(line)
        return True

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
