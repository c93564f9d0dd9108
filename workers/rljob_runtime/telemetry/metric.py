"""What a metric is: its name, unit, labels and meaning. No library of Prometheus is needed to define or record one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"^rljob_[a-z]+_[a-z_]+[a-z]$")


class MetricKind(StrEnum):
    """Kinds of metrics, by Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a role.

    Attributes:
        name: as Prometheus shows it, with its unit; of a histogram without `_bucket`, `_sum` and `_count`.
        kind: counter, gauge or histogram.
        help: one sentence.
        labels: names of its labels, each of few values: no trajectory, no prompt, no text of a user.
        buckets: of a histogram, upper bounds in increasing order.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"{self.name} is no name of a metric")
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters end in _total, and nothing else does")
        if (self.kind is MetricKind.HISTOGRAM) != bool(self.buckets) or list(self.buckets) != sorted(
            self.buckets
        ):
            raise ValueError(f"{self.name}: a histogram has buckets in order, and nothing else has any")


def counter(name: str, text: str, *labels: str) -> Metric:
    """A number that only grows."""
    return Metric(name, MetricKind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Metric:
    """A number that goes up and down."""
    return Metric(name, MetricKind.GAUGE, text, labels)


def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Metric:
    """How often values were how large."""
    return Metric(name, MetricKind.HISTOGRAM, text, (), buckets)


SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Buckets of what takes milliseconds: one message to a server, one decision."""
LONG_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Buckets of what takes up to minutes: a step, a checkpoint, a version of the weights."""
VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
"""Buckets of staleness, which `spec.pipeline.maxStaleness` keeps at 64 or less."""
