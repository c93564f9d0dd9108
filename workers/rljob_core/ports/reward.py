"""`Reward`: the score of one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

ARGUMENTS = ("completion", "item", "finish_reason", "truncated")
"""What a reward is called with, by keyword, of these as many as it takes.

| argument | is |
|---|---|
| `completion` | the response's text |
| `item` | the data item |
| `finish_reason` | `stop`, or `length` if the response was cut at `maxTokens` (or an episode at its limits) |
| `truncated` | whether `finish_reason` is `length` |
"""


GROUP_ARGUMENTS = ("completions", "item", "finish_reasons", "truncated")
"""What a function that scores a whole group is called with, of these as many as it takes.

`completions`, `finish_reasons` and `truncated` are lists, one entry for each answer, in the same order.
"""


class GroupReward(Protocol):
    """Scores all answers to one prompt in one call (`spec.reward.perGroup`). It may take more of `GROUP_ARGUMENTS`."""

    def __call__(
        self, *, completions: list[str], item: Mapping[str, Any]
    ) -> Sequence[float] | Awaitable[Sequence[float]]:
        """One score for each completion, in their order, each as a `Reward` returns it.

        Raises:
            BaseException: anything; the group has no scores then.
        """


class Reward(Protocol):
    """A verifier: the score of one answer.

    It may take more of `ARGUMENTS`, and may be an `async def`.
    """

    def __call__(self, *, completion: str, item: Mapping[str, Any]) -> float | Awaitable[float]:
        """Score the response's text against the data item: a number of at most `LARGEST_SCORE`, positive or negative.

        Raises:
            BaseException: anything; it aborts the trajectory with its reason.
        """
