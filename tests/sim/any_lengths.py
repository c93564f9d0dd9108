"""A predictor that may say anything of lengths, at once: estimates change nothing but the order of dispatch."""

from __future__ import annotations

from collections.abc import Callable

from rljob_core.actions import LengthsPredicted, PredictLengths
from rljob_core.stable_hash import stable_hash


class AnyLengths:
    """Carries out `PredictLengths`.

    Args:
        correlation: that it claims; 0 if its estimates are not to be used.
        observe: takes the answers.
    """

    def __init__(self, correlation: float, observe: Callable[[LengthsPredicted], None]) -> None:
        self._correlation = correlation
        self._observe = observe
        self._asked = 0

    async def ask(self, asked: PredictLengths) -> None:
        """Answer with other estimates each time."""
        self._asked += 1
        tokens = tuple(1.0 + stable_hash(f"{self._asked}/{prompt}") % 200 for prompt in asked.prompts)
        spreads = (1.0,) * len(tokens)
        self._observe(LengthsPredicted(asked.prompts, tokens, spreads, self._correlation, self._correlation))
