"""Bounds the size and the content of messages that roles accept from each other, because a sender may send anything.

The first part is sizes: no role reads, decompresses or allocates more because of what another one has written. Each
size follows from what a job can need; `docs/nats-security.md` lists them. The second part is what an event, a signal, a
summary or a score may contain.

Of what workers say, names and numbers become subjects, keys, records of the ledger and terms of sums. What cannot be
one of these is refused, all of the message with it. Words for people are cut instead: a failure is not to be lost
because it is described at length. What a message may *change* is the planner's question: it ignores senders, attempts
and versions that are not in charge.
"""

from __future__ import annotations

import dataclasses
import math
import re
from enum import Enum
from typing import Any, TypeVar

from rljob_core.messages.metrics import StepStats
from rljob_core.spec import LONGEST_RESPONSE, MOST_TURNS
from rljob_core.streams_budget import CHUNK_BYTES, LONGEST_PROMPT_TOKENS, payload_bytes

MESSAGE_BYTES = CHUNK_BYTES
"""Bytes of one message's data at most: its headers fit beside it below NATS' default limit of 1 MB."""
HEADER_LINES = 64
"""Headers of a message that are read: eight of ours at most, and as many of the server's, which come last."""
MESSAGE_TRAJECTORIES = 128
"""Trajectories in one message: a header block ends at 64 KB, and a summary takes up to about 300 bytes."""
MESSAGE_RESULTS = 512
"""Scores in one message, of a few hundred bytes each."""
SEGMENTS = 1024
"""Segments of a trajectory; a turn of an environment makes two."""
LARGEST_SNAPSHOT = 256 << 20
"""Bytes of a decompressed snapshot of the ledger: 250 for each sibling under way, of which a step has 50,000 at most. A
larger one is passed over, and the ledger read from its start."""
LARGEST_MANIFEST = 64 << 20
"""Bytes of a version's manifest: 200 for each tensor, 20 for each trajectory of its step."""
TENSOR_DIMENSIONS = 8
"""Dimensions of a tensor in a manifest."""

LONGEST_NAME = 300
"""Characters of a name, a key or a digest at most."""
LONGEST_WORDS = 4096
"""Characters that are kept of words for people, as of a termination message."""
LARGEST_NUMBER = 2**53
"""What JSON readers of any language hold exactly."""

_WORDS = frozenset({"detail", "error", "message", "reason", "stuck_detail"})
_PATTERNS = {
    # Part of subjects and keys, where `*` and `>` mean others.
    "engine": re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*"),
    "site": re.compile(r"([a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?)?"),
    "trajectory": re.compile(r"(g\d{1,12}|e\d{1,12}-\d{1,12})\.\d{1,9}", re.ASCII),
}
_NAME = re.compile(r"[!-~]*")

Said = TypeVar("Said")


class OutOfBounds(ValueError):
    """A message's field cannot be what it says; the text names the field."""


def longest_payload(max_tokens: int = LONGEST_RESPONSE) -> int:
    """Bytes of one stored trajectory at most, its chunks put together.

    Args:
        max_tokens: of a response, `spec.rollout.sampling.maxTokens`; the longest of any job if it is not known.
    """
    return payload_bytes(prompt_tokens=LONGEST_PROMPT_TOKENS, response_tokens=max_tokens, turns=MOST_TURNS)


def within_limits(message: Said) -> Said:
    """The message, a dataclass, with its words cut.

    Raises:
        OutOfBounds: it cannot be true, or would harm the role that works with it.
    """
    checked: Said = _checked(message)
    return checked


def _checked(value: Any) -> Any:
    """A dataclass with its fields checked."""
    changes = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = _field(field.name, old, statistics=isinstance(value, StepStats))
        if new is not old:
            changes[field.name] = new
    return dataclasses.replace(value, **changes) if changes else value


def _field(name: str, value: Any, *, statistics: bool) -> Any:
    match value:
        case bool() | Enum() | None:
            return value
        case int():
            if not 0 <= value <= LARGEST_NUMBER:
                raise OutOfBounds(f"{name} is {_shown(value)}")
        case float():
            if not (statistics or math.isfinite(value)):  # statistics are only shown
                raise OutOfBounds(f"{name} is {value}")
        case str() if name in _WORDS:
            return value if len(value) <= LONGEST_WORDS else value[:LONGEST_WORDS]
        case str():
            if len(value) > LONGEST_NAME or not _PATTERNS.get(name, _NAME).fullmatch(value):
                raise OutOfBounds(f"{name} is {value[:40]!r}, of {len(value)} characters")
        case dict():
            for key, item in value.items():
                _field("", key, statistics=statistics)
                _field(name, item, statistics=statistics)
        case tuple():
            for item in value:
                _field("trajectory" if name == "trajectories" else name, item, statistics=statistics)
        case _:
            return _checked(value)
    return value


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**20 else f"a number of {value.bit_length()} bits"
