"""What a decision about the engines of a job depends on, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

USUAL_WAITING = 0.03
"""Share of its time for which a trainer may wait if nobody says otherwise."""
USUAL_START_SECONDS = 120.0
"""Seconds that an engine takes until it serves, if nobody has seen one start."""


@dataclass(frozen=True, slots=True)
class ScalingGoal:
    """What the engines are for.

    Attributes:
        waiting: share of its time for which the trainer may wait.
        budget: what all engines may cost in an hour; None for any amount.
        seconds_left: until the deadline; None without one.
        steps_left: that are to be trained.
        window: seconds between changes.
    """

    waiting: float = USUAL_WAITING
    budget: float | None = None
    seconds_left: float | None = None
    steps_left: int = 0
    window: float = 600.0


@dataclass(frozen=True, slots=True)
class ScaledPool:
    """A pool as it is.

    Attributes:
        price: of one engine for an hour.
        least, most: engines that it may have; equal for a pool that something else scales.
        wanted: engines that it is to have now; None before it exists.
        ready: engines that serve.
        interruptions: of one engine in an hour.
        start_seconds: that an engine takes until it serves.
        late_seconds: for how long not all engines that are wanted have been ready; 0 if all are.
        unscheduled_seconds: for how long an engine has found no node; 0 if all have one.
        token_price: of one token that it generates, beyond the engine's: a site's link may have one.
        unheard: whether nobody knows what its engines do, as those of a site that is away: they are left as they are,
            and counted on for nothing.
    """

    name: str
    price: float
    least: int
    most: int
    wanted: int | None = None
    ready: int = 0
    interruptions: float = 0.0
    start_seconds: float = USUAL_START_SECONDS
    late_seconds: float = 0.0
    unscheduled_seconds: float = 0.0
    token_price: float = 0.0
    unheard: bool = False

    @property
    def is_starting(self) -> bool:
        """Whether engines that are wanted do not serve yet."""
        return self.wanted is not None and self.ready < self.wanted and not self.unheard

    def within(self, replicas: int) -> int:
        """The nearest number of engines that it may have."""
        return min(max(replicas, self.least), self.most)


@dataclass(frozen=True, slots=True)
class ScalerState:
    """What one decision leaves to the next.

    Attributes:
        demand: tokens per second to generate, as last known; 0 before the first step.
        efficiency: what engines make, of what they would make with all slots taken.
        changed: when engines were last added or taken away, in seconds; None if never.
        changed_step: the step that was trained then.
        saving_since: since when fewer or cheaper engines would have sufficed, without a break; None if they would not.
        speeds: tokens per second of an engine, by pool, as last known.
        unavailable: until when a pool counts as unable to start engines, by pool.
    """

    demand: float = 0.0
    efficiency: float = 1.0
    changed: float | None = None
    changed_step: int = 0
    saving_since: float | None = None
    speeds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unavailable: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Scaling:
    """The decision.

    Attributes:
        replicas: engines by pool.
        required: tokens per second that they are to make.
        speed: that they will make.
        cost: of an hour.
        changed: why they are others than before; empty if they are not.
        limit: CamelCase reason why they do not make what is required; empty if they do, or nothing is known yet.
        message: the same, for people.
        retry_at: when a change that is due may come; None if none is.
    """

    replicas: Mapping[str, int]
    required: float
    speed: float
    cost: float
    changed: str = ""
    limit: str = ""
    message: str = ""
    retry_at: float | None = None
