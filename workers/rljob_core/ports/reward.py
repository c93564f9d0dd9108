"""`Reward`: the score of one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
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


class Reward(Protocol):
    """A verifier: the score of one answer.

    It may take more of `ARGUMENTS`, and may be an `async def`.
    """

    def __call__(self, *, completion: str, item: Mapping[str, Any]) -> float | Awaitable[float]:
        """Score the response's text against the data item: a number of at most `LARGEST_SCORE`, positive or negative.

        Raises:
            BaseException: anything; it aborts the trajectory with its reason.
        """
