"""How fast the trainer is, and how fast engines feed it: sums over the last steps of a job's metrics lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType

from rljob_core.messages import PoolSpeed, StepMetrics

SMOOTHED_STEPS = 10
"""Steps over which figures are smoothed."""
_SHARE = 2 / (SMOOTHED_STEPS + 1)


@dataclass(frozen=True, slots=True)
class TrainingLoad:
    """Exponential means per step, over about the last `SMOOTHED_STEPS`.

    Attributes:
        step: the newest step.
        steps: how many of its steps are in the means, at least.
        trained: tokens of its responses.
        generated: tokens that engines have generated meanwhile, for whatever purpose.
        busy: seconds in which the trainer computed or published.
        waiting: seconds in which it waited for trajectories.
        seconds: from one step to the next.
        pools: newest speeds of the engines, by pool.
    """

    step: int = 0
    steps: int = 0
    trained: float = 0.0
    generated: float = 0.0
    busy: float = 0.0
    waiting: float = 0.0
    seconds: float = 0.0
    pools: Mapping[str, PoolSpeed] = field(default_factory=lambda: MappingProxyType({}))
    mark: tuple[float, int] = (0.0, 0)
    """Seconds and generated tokens at the newest step, since its coordinator started."""

    @property
    def demand(self) -> float:
        """Tokens per second that the trainer could train if it never waited; 0 while unknown."""
        return self.trained / self.busy if self.busy > 0 else 0.0

    @property
    def overhead(self) -> float:
        """Tokens that are generated for each one that is trained: evaluations, aborted and dropped groups."""
        if not (self.trained > 0 and self.generated > 0):
            return 1.0
        return min(max(self.generated / self.trained, 1.0), _MOST_OVERHEAD)

    @property
    def supply(self) -> float:
        """Tokens per second that engines have generated; 0 while unknown."""
        return self.generated / self.seconds if self.seconds > 0 else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of its time for which the trainer waited."""
        whole = self.waiting + self.busy
        return self.waiting / whole if whole > 0 else 0.0

    @property
    def idle(self) -> float:
        """Share of what engines would generate with all slots taken that they do not generate; 0 while unknown."""
        speeds = [speed for speed in self.pools.values() if speed.engine_tokens_per_second > 0]
        full = sum(speed.engines * speed.engine_tokens_per_second for speed in speeds)
        made = sum(speed.tokens_per_second for speed in speeds)
        return max(1 - made / full, 0.0) if full > 0 else 0.0


_MOST_OVERHEAD = 4.0
"""More than this is the beginning, when the pipeline fills, and not what each step costs."""


def load_after(before: TrainingLoad | None, line: StepMetrics) -> TrainingLoad:
    """The load after a line of the job's metrics. Lines of no step only tell the engines' speeds.

    A line that cannot be true is passed over: a job says of itself what it likes.
    """
    before = before or TrainingLoad()
    speeds = {
        name: speed
        for name, speed in line.pools.items()
        if all(map(_plausible, (speed.engines, speed.tokens_per_second, speed.engine_tokens_per_second)))
    }
    if speeds:
        before = replace(before, pools=MappingProxyType(speeds))
    stats = line.stats
    if line.reward_mean is None or stats is None or stats.tokens <= 0:
        return before
    figures = (stats.seconds_waiting, stats.seconds_training, stats.seconds_publishing, line.seconds)
    if not all(map(_plausible, (*figures, stats.tokens, line.tokens_generated))):
        return before
    seconds, tokens = before.mark
    continued = before.steps > 0 and line.seconds > seconds and line.tokens_generated >= tokens
    new = TrainingLoad(
        trained=stats.tokens,
        busy=stats.seconds_training + stats.seconds_publishing,
        waiting=stats.seconds_waiting,
        generated=line.tokens_generated - tokens if continued else before.generated or stats.tokens,
        seconds=line.seconds - seconds
        if continued
        else stats.seconds_training + stats.seconds_publishing + stats.seconds_waiting,
    )
    share = 1.0 if before.steps == 0 else max(_SHARE, 1 / (before.steps + 1))
    means = {
        name: getattr(before, name) + share * (getattr(new, name) - getattr(before, name))
        for name in ("trained", "busy", "waiting", "generated", "seconds")
    }
    return replace(
        before,
        step=line.step,
        steps=before.steps + 1,
        mark=(line.seconds, line.tokens_generated),
        **means,
    )


def _plausible(figure: float) -> bool:
    return 0 <= figure <= _LARGEST and isfinite(figure)


_LARGEST = 1e12
"""Of any figure in a line: tokens of a job, or its seconds."""
