"""What a simulated job was like: time, throughput, staleness, idle time and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step.

    Attributes:
        time: of its commit, in seconds since the start.
        tokens: of its trajectories, prompts included.
        staleness: of each of them: versions by which its oldest token is behind the policy that trained on it.
    """

    time: float
    tokens: int
    staleness: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What the link of a site has carried.

    Attributes:
        bytes: both ways.
        cost: of these.
        outbox: bytes that waited at the site for the hub, at most.
        trajectories: that engines there generated.
    """

    bytes: float
    cost: float
    outbox: float
    trajectories: int


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """A simulated job.

    Attributes:
        outcome: as of a real job.
        steps: in order.
        engine_busy: per pool, the share of time in which its engines made steps.
        engine_full: per pool, the share of its slots that were in use over the time.
        trainer_busy: the share of time in which the trainer trained.
        hourly: cost of an hour, without what links carry.
        sites: by site, what was carried by its link.
    """

    outcome: str
    steps: tuple[Step, ...]
    engine_busy: dict[str, float]
    engine_full: dict[str, float]
    trainer_busy: float
    hourly: float
    sites: dict[str, LinkUse] = field(default_factory=dict)

    @property
    def cost_per_hour(self) -> float:
        """Of engines, trainer and links, on average over the job."""
        carried = sum(link.cost for link in self.sites.values())
        return self.hourly + (carried * SECONDS_PER_HOUR / self.seconds if self.steps else 0.0)

    @property
    def seconds(self) -> float:
        """From the start to the last commit."""
        return self.steps[-1].time if self.steps else 0.0

    def seconds_per_step(self, *, skip: int = 0) -> float:
        """Mean time from commit to commit, after the first `skip` ones."""
        counted = self.steps[skip:]
        first = self.steps[skip - 1].time if skip else 0.0
        return (counted[-1].time - first) / len(counted)

    def tokens_per_second(self, *, skip: int = 0) -> float:
        """Tokens trained each second, after the first `skip` steps."""
        counted: Sequence[Step] = self.steps[skip:]
        first = self.steps[skip - 1].time if skip else 0.0
        return sum(step.tokens for step in counted) / (counted[-1].time - first)

    def staleness(self, *, skip: int = 0) -> float:
        """Mean over trajectories."""
        return fmean(value for step in self.steps[skip:] for value in step.staleness)

    @property
    def max_staleness(self) -> int:
        """The largest of any trajectory."""
        return max(value for step in self.steps for value in step.staleness)
