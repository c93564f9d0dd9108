"""For how long an engine may make no token before it is ended, learned from the pauses that it makes while it works.

`spec.rollout.hangSeconds` must be longer than the longest prefill of any model. Most engines pause for less than a
second, so a prompt that hangs them would cost three times hundreds of seconds. Therefore an engine that has been seen
at work may be silent for `FACTOR` times its widest pause of the last half hour of work, for `LEAST_SECONDS` at least,
and never for more than `hangSeconds`.

A harmless engine that is ended loses its work, so the limit is `hangSeconds` wherever a pause can be expected that is
longer than those before:

- before the engine has made tokens in `EARLY` seconds of work: kernels are compiled, caches are cold. From then on,
  until it has in `ENOUGH`, the limit is `FACTOR` times its widest pause so far, and `EARLY_LEAST_SECONDS` at least;
- while it has a prompt more than `FAMILIAR` times as long as any that it has answered in this half hour, or prompts
  that are together so much longer than at any token that it made: prefill takes at most the square of that factor more
  time, which `FACTOR` covers. What a response inherits from another engine counts as a part of its prompt;
- while it takes weights, and until its next token, if it has not done so twice in this half hour, at work;
- while it has nothing to generate: then it takes weights as well, and nobody waits for it.

`LEAST_SECONDS` is there for what has nothing to do with the engine's own pace: a machine that is short of processor
time or memory, a disk that stands still. A pause is measured by a clock, so one in which everything stood still widens
the limit; silence is counted by the process that watches, which counts none while it stands still itself.

Where all that an engine has to generate has outlived another engine, it holds quarantined work and nothing else. Little
is lost with it and a hang is likely, so the least is half of what it is otherwise.

The next process in the pod, which an engine's death starts, has seen nothing. It gets what its predecessor knew
(`KnownPauses`), with `FACTOR` times the widest pause from before `ENOUGH`, as it is cold, too. It may be silent for
twice as long each time that a process has ended before it has seen enough itself: so an engine that always needs longer
to get going is not ended forever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

FACTOR = 10
"""How many times as long as its widest pause an engine may be silent."""
LEAST_SECONDS = 20
"""Seconds for which any engine may be silent."""
EARLY, EARLY_LEAST_SECONDS = 10, 60
"""Seconds in which an engine must have made tokens before its pauses count at all, and the least for which it may be
silent then."""
ENOUGH = 60
"""Seconds in which an engine must have made tokens before it is known not to be cold any more."""
FAMILIAR = 2
"""How many times as long as known ones prompts may be."""
_SWAPS = 2
_PERIOD_SECONDS, _PERIODS = 60.0, 30


@dataclass(frozen=True, slots=True)
class EngineAtWork:
    """What an engine has to do at one moment, and what it has done.

    Attributes:
        tokens: generated since it started.
        version: of its weights.
        busy: whether it has anything to generate.
        swapping: whether it takes new weights.
        longest: tokens of the longest prompt that it has, with what its response inherits; 0 if it has none.
        total: the same of all of them together.
        answered: the same of the longest that it has answered since this was asked last; 0 if it has answered none.
        quarantined: whether all that it has to generate has outlived another engine.
    """

    tokens: int
    version: int
    busy: bool
    swapping: bool = False
    longest: int = 0
    total: int = 0
    answered: int = 0
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class KnownPauses:
    """What is known of the pauses of a pod's engines, for the next of them.

    Attributes:
        seconds: for how long one that has just started may be silent.
        longest: see `EngineAtWork`: the longest prompt that was answered.
        total: the most at which tokens were made.
        swaps: how often weights were taken.
        quarantined_seconds: for how long it may be silent with only quarantined work; 0 for as long as any other.
    """

    seconds: int
    longest: int
    total: int
    swaps: int
    quarantined_seconds: int = 0


@dataclass(slots=True)
class _Period:
    """A minute of work: its widest pause, what was answered in it, and how many swaps."""

    work_seconds: float = 0.0
    pause: float = 0.0
    longest: int = 0
    total: int = 0
    swaps: int = 0


class HangLimit:
    """Learns for how long one engine may make no token.

    Args:
        most: `hangSeconds`.
        known: of earlier engines of the pod, if there were any.
    """

    def __init__(self, most: int, known: KnownPauses | None = None) -> None:
        self._most, self._inherited = most, known
        self._periods = deque([_Period()], _PERIODS)
        self._seen = 0
        self._cold_pause = 0.0
        self._since = 0.0
        self._last: EngineAtWork | None = None
        self._swapped = False
        """Whether it has taken weights since its last token."""

    @property
    def is_warm(self) -> bool:
        """Whether enough was seen of this engine."""
        return self._seen >= ENOUGH

    def observe(self, now: float, work: EngineAtWork) -> None:
        """Learn from one look at the engine; there is one each second.

        Args:
            now: seconds, of a clock that never goes back.
            work: what the engine has to do, and has done.
        """
        last, self._last = self._last, work
        if last is None or not (last.busy and work.busy):
            self._since = now
        if last is None:
            return
        period = self._periods[-1]
        period.longest = max(period.longest, work.answered)
        self._swapped = self._swapped or (work.busy and (work.swapping or work.version != last.version))
        if work.tokens == last.tokens:
            return
        period.total = max(period.total, min(work.total, last.total))
        if self._swapped and not work.swapping:
            period.swaps, self._swapped = period.swaps + 1, False
        self._end_pause(now)

    def _end_pause(self, now: float) -> None:
        pause, self._since, self._seen = now - self._since, now, self._seen + 1
        if not self.is_warm:
            self._cold_pause = max(self._cold_pause, pause)
            return
        period = self._periods[-1]
        period.pause, period.work_seconds = max(period.pause, pause), period.work_seconds + pause
        if period.work_seconds >= _PERIOD_SECONDS:
            self._periods.append(_Period())

    @property
    def seconds(self) -> int:
        """For how long the engine may make no token now."""
        known, work = self._known(), self._last
        if known is None or work is None or not work.busy:
            return self._most
        is_strange = work.longest > FAMILIAR * known.longest or work.total > FAMILIAR * known.total
        if is_strange or (self._swapped and known.swaps < _SWAPS):
            return self._most
        seconds = (known.quarantined_seconds if work.quarantined else 0) or known.seconds
        return min(self._most, seconds)

    def _known(self) -> KnownPauses | None:
        """What counts for this engine now: its own pauses, once there are enough."""
        if not self.is_warm:
            return self._inherited or self._early()
        return self._measured(max(period.pause for period in self._periods))

    def _early(self) -> KnownPauses | None:
        """What can be said of the pod's first engine before enough was seen of it."""
        if self._seen < EARLY:
            return None
        return self._measured(self._cold_pause, least=EARLY_LEAST_SECONDS)

    def _measured(self, pause: float, *, least: int = LEAST_SECONDS) -> KnownPauses:
        return KnownPauses(
            seconds=_limit(pause, least),
            quarantined_seconds=_limit(pause, least // 2),
            longest=max(period.longest for period in self._periods),
            total=max(period.total for period in self._periods),
            swaps=sum(period.swaps for period in self._periods),
        )

    def for_successor(self) -> KnownPauses | None:
        """What the pod's next engine starts with, should this one end now; None if nothing is known."""
        known, measured = self._inherited, self._measured(self._cold_pause)
        if self.is_warm:
            return self._at_least(measured, known or measured, times=1)
        return self._early() if known is None else self._at_least(known, known, times=2)

    def _at_least(self, found: KnownPauses, known: KnownPauses, *, times: int) -> KnownPauses:
        return replace(
            found,
            seconds=min(self._most, max(found.seconds, times * known.seconds)),
            quarantined_seconds=min(
                self._most, max(found.quarantined_seconds, times * known.quarantined_seconds)
            ),
        )


def _limit(pause: float, least: int) -> int:
    return max(least, int(FACTOR * pause) + 1)
