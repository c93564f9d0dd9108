"""Records a role's metrics in memory. A scrape copies them in another thread; a role never waits for one."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from rljob_runtime.telemetry.metric import Metric, MetricKind

MOST_SERIES = 64
"""Series of one metric; what has further labels counts under the label `Other`."""
OTHER = "Other"
_WORD = re.compile(r"[A-Za-z]{1,40}")


def reason_label(reason: str) -> str:
    """The first word of a reason, which is the only part of it that has few values."""
    found = _WORD.match(reason)
    return found[0] if found else OTHER


@dataclass(slots=True)
class Distribution:
    """The observations of a histogram: how many fell into each bucket (the last has no bound), and their sum."""

    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class _Clock:
    """A counter of seconds by state, with the state that lasts now."""

    state: str
    since: float
    seconds: dict[str, float] = field(default_factory=dict)

    def at(self, now: float) -> dict[str, float]:
        """Seconds by state until now."""
        return {**self.seconds, self.state: self.seconds.get(self.state, 0.0) + max(0.0, now - self.since)}


@dataclass(frozen=True, slots=True)
class RecordedMetric:
    """What was recorded of one metric, by the values of its labels."""

    metric: Metric
    values: Mapping[tuple[str, ...], float | Distribution]


class Recorder:
    """The metrics of one role.

    Args:
        metrics: those that the role has. Counters and histograms without labels start at zero; all else appears when it
            is first recorded.
        clock: seconds, of which only differences count.

    Attributes:
        is_read: whether anybody can read them: a role does not ask others for what nobody sees.
    """

    def __init__(self, metrics: Sequence[Metric], clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self.is_read = False
        self._lock = Lock()
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._distributions: dict[Metric, Distribution] = {}
        self._clocks: dict[Metric, _Clock] = {}
        for metric in metrics:
            if metric.kind is MetricKind.HISTOGRAM:
                self._distributions[metric] = Distribution([0] * (len(metric.buckets) + 1))
            else:
                starts_at_zero = metric.kind is MetricKind.COUNTER and not metric.labels
                self._values[metric] = {(): 0.0} if starts_at_zero else {}

    def add(self, metric: Metric, amount: float = 1.0, *labels: str) -> None:
        """Increase a counter."""
        with self._lock:
            series = self._values[metric]
            key = _bounded(series, labels)
            series[key] = series.get(key, 0.0) + amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge, or a counter whose total is counted elsewhere."""
        with self._lock:
            series = self._values[metric]
            series[_bounded(series, labels)] = float(value)

    def replace(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        """Set all series of a metric; those that are not given end."""
        series: dict[tuple[str, ...], float] = {}
        for labels, value in values.items():
            key = _bounded(series, labels)
            series[key] = series.get(key, 0.0) + value
        with self._lock:
            self._values[metric] = series

    def observe(self, metric: Metric, value: float) -> None:
        """Add an observation to a histogram."""
        with self._lock:
            distribution = self._distributions[metric]
            distribution.counts[bisect_left(metric.buckets, value)] += 1
            distribution.sum += value

    @contextmanager
    def timed(self, metric: Metric) -> Iterator[None]:
        """Observe how many seconds the block takes; one that raises does not count."""
        begun = self.now()
        yield
        self.observe(metric, self.now() - begun)

    def enter(self, metric: Metric, state: str) -> str:
        """Count seconds from now on for this state of a counter by state; returns the state before, "" at first."""
        now = self.now()
        with self._lock:
            clock = self._clocks.get(metric)
            if clock is None:
                self._clocks[metric] = _Clock(state, now)
                return ""
            before = clock.state
            clock.seconds, clock.state, clock.since = clock.at(now), state, now
            return before

    @contextmanager
    def during(self, metric: Metric, state: str) -> Iterator[None]:
        """Count the seconds of the block for this state, and afterwards for the one before it."""
        before = self.enter(metric, state)
        try:
            yield
        finally:
            self.enter(metric, before or state)

    def snapshot(self) -> list[RecordedMetric]:
        """A copy of everything, in the order of the definitions; any thread may call it."""
        now = self.now()
        with self._lock:
            recorded: dict[Metric, dict[tuple[str, ...], float | Distribution]] = {}
            for metric, series in self._values.items():
                recorded[metric] = {**series}
            for metric, found in self._distributions.items():
                recorded[metric] = {(): Distribution(list(found.counts), found.sum)}
            for metric, clock in self._clocks.items():
                recorded[metric] = {(state,): seconds for state, seconds in clock.at(now).items()}
        return [RecordedMetric(metric, values) for metric, values in recorded.items() if values]


def _bounded(series: Mapping[tuple[str, ...], float], labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels, or `Other` for each where a metric has as many series as it may have."""
    return labels if labels in series or len(series) < MOST_SERIES else (OTHER,) * len(labels)
