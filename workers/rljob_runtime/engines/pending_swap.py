"""Swaps of weights that wait for the end of the step under way, for engines whose steps run in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_core.errors import GenerationFailed


@dataclass(frozen=True, slots=True)
class PendingSwap:
    """A swap that a caller awaits.

    Attributes:
        version: policy version of the new weights.
        inflight: what happens to running responses, as `spec.pipeline.inflight` says it.
        done: resolved once the weights are in use.
        tensors: the weights by name; None for the initial ones.
    """

    version: int
    inflight: str
    done: asyncio.Future[None]
    tensors: Mapping[str, Any] | None = None

    def succeed(self) -> None:
        """The weights are in use."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        """The weights are not in use, and the caller gets the error."""
        if not self.done.done():
            self.done.set_exception(error)


def fail_all(swaps: Iterable[PendingSwap], failure: GenerationFailed) -> None:
    """Tell every caller that the engine has ended."""
    for swap in swaps:
        swap.fail(failure)
