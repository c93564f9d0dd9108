"""How long an engine's decode steps take, learned from the steps that it runs.

The model is the one that dispatch and the emulated engine use: a step takes ``seconds + perSlot * batch + perToken *
context``, where `context` counts the tokens of all sequences in the batch. Its three coefficients come from least
squares with exponential forgetting, so that they follow an engine whose machine gets busier.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

import numpy as np

from rljob_core.messages import EngineProfile

#: What an observation's weight is multiplied with at each later one: they count for some 500 steps.
_FORGET = 0.998
#: Observations before there is a profile.
_ENOUGH = 32
#: Batch and context in these units keep the normal equations well-conditioned.
_BATCH_UNIT, _CONTEXT_UNIT = 64.0, 16384.0


class StepTimes:
    """Learns an engine's profile from its steps."""

    def __init__(self) -> None:
        self._normal = np.zeros((3, 3))
        self._moment = np.zeros(3)
        self._steps = 0

    def observe(self, seconds: float, *, batch: float, context: float) -> None:
        """A decode step took so long, with so many sequences of so many tokens together."""
        inputs = np.array([1.0, batch / _BATCH_UNIT, context / _CONTEXT_UNIT])
        # Relative errors count: a step of an idle engine matters as much as one of a full one.
        weight = 1.0 / max(seconds, 1e-6) ** 2
        self._normal = _FORGET * self._normal + weight * np.outer(inputs, inputs)
        self._moment = _FORGET * self._moment + weight * seconds * inputs
        self._steps += 1

    @property
    def profile(self) -> EngineProfile | None:
        """The fitted step times; None before there are enough observations."""
        if self._steps < _ENOUGH:
            return None
        fixed, per_batch, per_context = _not_negative(self._normal, self._moment)
        return EngineProfile(
            seconds=fixed,
            seconds_per_slot=per_batch / _BATCH_UNIT,
            seconds_per_context_token=per_context / _CONTEXT_UNIT,
            steps=self._steps,
        )


class _Sequence(Protocol):
    @property
    def length(self) -> int:
        """Of its context, in tokens."""


class StepMeter:
    """Measures decode steps by the tokens that come out: a step brings one of each running sequence."""

    def __init__(self) -> None:
        self._times = StepTimes()
        self._since: float | None = None
        self._came = 0

    @property
    def profile(self) -> EngineProfile | None:
        """The fitted step times; None before there are enough observations."""
        return self._times.profile

    def disturb(self) -> None:
        """What runs has changed: the step under way is not measured."""
        self._since = None

    def tokens(self, number: int, running: Collection[_Sequence]) -> None:
        """So many tokens came while these were running."""
        now = time.perf_counter()
        self._came += number
        if self._since is not None and self._came >= len(running):
            context = sum(sequence.length for sequence in running)
            steps = self._came / len(running)
            self._times.observe((now - self._since) / steps, batch=len(running), context=context)
        elif self._since is not None:
            return
        self._since, self._came = now, 0


def _not_negative(normal: np.ndarray, moment: np.ndarray) -> tuple[float, float, float]:
    """The coefficients that fit best among those that are not negative.

    With three of them, all seven choices of those that are not zero are tried.
    """
    # A little towards zero, for what was never varied: a context that grows with the batch alone, say.
    ridge = 1e-6 * (np.trace(normal) / 3 or 1.0) * np.eye(3)
    best, least = np.zeros(3), 0.0
    for choice in range(1, 8):
        kept = [index for index in range(3) if choice >> index & 1]
        found = np.linalg.solve((normal + ridge)[np.ix_(kept, kept)], moment[kept])
        if (found < 0).any():
            continue
        # The squared error without its constant part.
        error = found @ normal[np.ix_(kept, kept)] @ found - 2 * found @ moment[kept]
        if error < least:
            best, least = np.zeros(3), error
            best[kept] = found
    return float(best[0]), float(best[1]), float(best[2])
