"""What an event or a signal may contain: whoever can write to the job's streams may send anything that decodes.

Of what workers say, names and numbers become subjects, keys, records of the ledger and terms of sums. What cannot be
one of these is refused, all of the message with it. Words for people are cut instead: a failure is not to be lost
because it is described at length. What a message may *change* is the planner's question: it ignores senders, attempts
and versions that are not in charge.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, TypeVar

from rljob_core.messages.coordinator_events import CoordinatorEvent
from rljob_core.messages.metrics import StepStats
from rljob_core.messages.signals import EngineSignal

LONGEST_NAME = 300
"""Characters of a name, a key or a digest at most."""
LONGEST_WORDS = 4096
"""Characters that are kept of words for people, as of a termination message."""
LARGEST_NUMBER = 2**53
"""What JSON readers of any language hold exactly."""

_WORDS = frozenset({"detail", "message", "reason", "stuck"})
_PATTERNS = {
    # Part of subjects and keys, where `*` and `>` mean others.
    "engine": re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*"),
    "trajectory": re.compile(r"(g\d{1,12}|e\d{1,12}-\d{1,12})\.\d{1,9}", re.ASCII),
}
_NAME = re.compile(r"[!-~]*")

Said = TypeVar("Said", bound=CoordinatorEvent | EngineSignal)


class OutOfBounds(ValueError):
    """A message's field cannot be what it says; the text names the field."""


def within_limits(message: Said) -> Said:
    """The message, with its words cut.

    Raises:
        OutOfBounds: it cannot be true, or would harm whoever works with it.
    """
    checked: Said = _checked(message)
    return checked


def _checked(value: Any) -> Any:
    """A dataclass with its fields checked."""
    changes = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = _field(field.name, old, figures=isinstance(value, StepStats))
        if new is not old:
            changes[field.name] = new
    return dataclasses.replace(value, **changes) if changes else value


def _field(name: str, value: Any, *, figures: bool) -> Any:
    match value:
        case bool() | None:
            return value
        case int():
            if not 0 <= value <= LARGEST_NUMBER:
                raise OutOfBounds(f"{name} is {_shown(value)}")
        case float():
            if not (figures or math.isfinite(value)):  # figures are only shown
                raise OutOfBounds(f"{name} is {value}")
        case str() if name in _WORDS:
            return value if len(value) <= LONGEST_WORDS else value[:LONGEST_WORDS]
        case str():
            if len(value) > LONGEST_NAME or not _PATTERNS.get(name, _NAME).fullmatch(value):
                raise OutOfBounds(f"{name} is {value[:40]!r}, of {len(value)} characters")
        case tuple():
            for item in value:
                _field("trajectory" if name == "trajectories" else name, item, figures=figures)
        case _:
            return _checked(value)
    return value


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**20 else f"a number of {value.bit_length()} bits"
