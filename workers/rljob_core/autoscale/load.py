"""How fast the trainer is, and how fast engines feed it: a job's last steps, from its metrics lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite
from types import MappingProxyType

from rljob_core.messages import PoolSpeed, StepMetrics

SMOOTHED_STEPS = 10
"""Steps over which figures are smoothed."""
_MOST_OVERHEAD = 4.0
"""More than this is the beginning, when the pipeline fills, and not what each step costs."""
_LARGEST = 1e12
"""Of any figure in a line: tokens of a job, or its seconds."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """One step.

    Attributes:
        trained: tokens of its responses.
        generated: tokens that engines have generated meanwhile, for whatever purpose.
        busy: seconds in which the trainer computed or published.
        waiting: seconds in which it waited for trajectories.
        seconds: since the step before.
        engines: that were alive when it was committed.
    """

    trained: float
    generated: float
    busy: float
    waiting: float
    seconds: float
    engines: int = 0


@dataclass(frozen=True, slots=True)
class TrainingLoad:
    """The last steps of a job.

    Attributes:
        step: the newest step.
        steps: how many were seen.
        recent: the newest `SMOOTHED_STEPS` of them.
        pools: newest speeds of the engines, by pool.
        mark: seconds and generated tokens at the newest step, since its coordinator started.
    """

    step: int = 0
    steps: int = 0
    recent: tuple[StepLoad, ...] = ()
    pools: Mapping[str, PoolSpeed] = field(default_factory=lambda: MappingProxyType({}))
    mark: tuple[float, int] = (0.0, 0)

    @property
    def settled(self) -> TrainingLoad:
        """This load, of only the newest steps that had as many engines as there are now."""
        newest = takewhile(lambda step: step.engines == self.recent[-1].engines, reversed(self.recent))
        return replace(self, recent=tuple(newest)[::-1])

    @property
    def tokens(self) -> float:
        """Trained tokens of a step; 0 while unknown."""
        return sum(step.trained for step in self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def demand(self) -> float:
        """Tokens per second that the trainer could train if it never waited; 0 while unknown."""
        return _ratio(sum(step.trained for step in self.recent), sum(step.busy for step in self.recent))

    @property
    def overhead(self) -> float:
        """Tokens that are generated for each one that is trained: evaluations, aborted and dropped groups."""
        generated = sum(step.generated for step in self.recent)
        return min(max(_ratio(generated, sum(step.trained for step in self.recent)), 1.0), _MOST_OVERHEAD)

    @property
    def supply(self) -> float:
        """Tokens per second that engines have generated; 0 while unknown."""
        return _ratio(sum(step.generated for step in self.recent), sum(step.seconds for step in self.recent))

    @property
    def waiting(self) -> float:
        """Share of its time for which the trainer waited."""
        waited = sum(step.waiting for step in self.recent)
        return _ratio(waited, waited + sum(step.busy for step in self.recent))

    @property
    def idle(self) -> float:
        """Share of the engines' slots that had nothing to do lately; 0 while unknown."""
        engines = sum(speed.engines for speed in self.pools.values())
        busy = sum(speed.engines * min(speed.busy, 1.0) for speed in self.pools.values())
        return 1 - _ratio(busy, engines) if engines else 0.0


def load_after(before: TrainingLoad | None, line: StepMetrics) -> TrainingLoad:
    """The load after a line of the job's metrics. Lines of no step only tell the engines' speeds.

    A line that cannot be true is passed over: a job says of itself what it likes.
    """
    before = before or TrainingLoad()
    speeds = {
        name: speed
        for name, speed in line.pools.items()
        if _plausible(speed.engines, speed.tokens_per_second, speed.engine_tokens_per_second, speed.busy)
    }
    if speeds:
        before = replace(before, pools=MappingProxyType(speeds))
    stats = line.stats
    if line.reward_mean is None or stats is None:
        return before
    busy, waiting = stats.seconds_training + stats.seconds_publishing, stats.seconds_waiting
    if not _plausible(stats.tokens, busy, waiting, line.seconds, line.tokens_generated) or stats.tokens == 0:
        return before
    seconds, tokens = before.mark
    continued = before.steps > 0 and line.seconds > seconds and line.tokens_generated >= tokens
    new = StepLoad(
        trained=stats.tokens,
        generated=line.tokens_generated - tokens if continued else stats.tokens,
        busy=busy,
        waiting=waiting,
        seconds=line.seconds - seconds if continued else busy + waiting,
        engines=line.engines,
    )
    return replace(
        before,
        step=line.step,
        steps=before.steps + 1,
        recent=(*before.recent, new)[-SMOOTHED_STEPS:],
        mark=(line.seconds, line.tokens_generated),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _plausible(*figures: float) -> bool:
    return all(0 <= figure <= _LARGEST and isfinite(figure) for figure in figures)
