"""The commands that the event loop sends to the thread of the engine `Torch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_core.ports import Progress, Request

#: Called once something is done, with the error that forbade it, if any.
Settle = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate these: tickets and requests."""

    items: Sequence[tuple[int, Request]]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Forget these tickets."""

    tickets: frozenset[int]


@dataclass(frozen=True, slots=True)
class Report:
    """Tell, in the engine's thread, how far those of these tickets have come that have so many tokens at least."""

    least: Mapping[int, int]
    answer: Callable[[Sequence[Progress]], None]


@dataclass(frozen=True, slots=True)
class Swap:
    """Use new weights (None: those that are loaded) as `version`.

    `settle` is called in the engine's thread once they are in use, or with the error that forbids it.
    """

    version: int
    tensors: Mapping[str, Any] | None
    inflight: str
    settle: Settle


@dataclass(frozen=True, slots=True)
class Close:
    """End the thread."""


Command = Submit | Withdraw | Report | Swap | Close
