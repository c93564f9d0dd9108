"""`Reward`: the score of one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Reward(Protocol):
    """A verifier: the score of one answer."""

    def __call__(self, *, completion: str, item: Mapping[str, Any]) -> float:
        """Score the response's text against the data item.

        Raises:
            Exception: anything; it aborts the trajectory with its reason.
        """
