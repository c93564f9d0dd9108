"""When an engine takes new weights, and whether it computes its caches again: decided by what both cost it.

To take new weights costs an engine the seconds in which it generates nothing, and those in which it computes the
contexts of running responses again. How much that is of its time depends on how often there is a new version. So each
engine measures these three, and

- takes as many versions in one swap as make swaps cost `LEAST_SHARE` of its time, but never waits with a swap that
  something needs: what an engine is given names the oldest weights that may generate it, and once these are newer than
  its own, it takes the newest ones, whatever that costs;
- keeps caches if to compute them again would cost more than `LEAST_SHARE` of its time, where its options leave it the
  choice. What it generates then is of a policy between two versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_core.spec import SwapTime

LEAST_SHARE = 0.02
"""Share of an engine's time that swaps of weights may cost."""
MOST_VERSIONS = 64
"""Versions that an engine takes in one swap at most, unless it is to wait until something needs newer weights."""
_KEPT = 0.9
"""What is left of a measurement at each swap that brings no other."""
_NEWEST_COUNTS = 0.5
"""How much the newest measurement counts, of all so far; of sums, how much of them is left."""


@dataclass(slots=True)
class WeightSync:
    """What swaps of weights cost one engine, and what follows from that.

    As long as nothing is measured, the engine takes each version at once, and computes caches again.

    Args:
        time: `spec.rollout.weightSync`.
        recompute_cache: whether swaps compute caches again; None leaves it to the engine's measurements.

    Attributes:
        standing: seconds of a swap in which the engine generates nothing.
        interval: seconds between two versions; 0 before the second.
    """

    time: SwapTime
    recompute_cache: bool | None = True
    standing: float = 0.0
    interval: float = 0.0
    _newest: int = -1
    _since: float = 0.0
    _again_seconds: float = 0.0
    _again_context: float = 0.0

    @property
    def recomputing(self) -> float:
        """Seconds that computing a token of a context again takes."""
        return self._again_seconds / self._again_context if self._again_context else 0.0

    def announced(self, version: int, now: float) -> None:
        """A version was announced, at `now` seconds; perhaps once more, or instead of a revoked one."""
        if self._newest >= 0 and version > self._newest:
            each = max(now - self._since, 0.0) / (version - self._newest)
            self.interval = _mean(self.interval, each)
        if version != self._newest:
            self._newest, self._since = version, now

    def stood(self, seconds: float) -> None:
        """A swap took so many seconds in which the engine generated nothing."""
        self.standing = _mean(self.standing, max(seconds, 0.0))

    def recomputed(self, seconds: float, context: float) -> None:
        """To compute so many tokens of contexts again took so many seconds."""
        if context > 0:
            # Long contexts count more: of short ones, the error of a measurement is a large share.
            self._again_seconds = _NEWEST_COUNTS * self._again_seconds + max(seconds, 0.0)
            self._again_context = _NEWEST_COUNTS * self._again_context + context

    def kept(self) -> None:
        """Caches were kept, so that nothing was measured: what was measured before counts less, until it is again."""
        self._again_seconds *= _KEPT

    def recomputes(self, context: float) -> bool:
        """Whether a swap computes the contexts of what runs, so many tokens, again."""
        if self.recompute_cache is not None:
            return self.recompute_cache
        return self.recomputing * context <= LEAST_SHARE * self.interval

    def cost(self, context: float) -> float:
        """Seconds that a swap costs while responses run that have so many tokens of contexts."""
        return self.standing + (self.recomputing * context if self.recomputes(context) else 0.0)

    def is_due(self, behind: int, *, context: float, idle: bool, needed: bool) -> bool:
        """Whether the engine takes the newest version now.

        Args:
            behind: versions by which the engine's own is older.
            context: tokens of the contexts of what runs.
            idle: whether nothing runs, so that a swap stops nothing.
            needed: whether the engine has been given anything that needs newer weights than its own.
        """
        if needed or idle or self.time is SwapTime.AT_ONCE:
            return True
        if self.time is SwapTime.WHEN_NEEDED:
            return False
        allowed = LEAST_SHARE * self.interval  # for each version
        return not allowed or behind >= min(ceil(self.cost(context) / allowed), MOST_VERSIONS)


def _mean(before: float, newest: float) -> float:
    return newest if not before else before + _NEWEST_COUNTS * (newest - before)
