"""Summaries of payloads: what a message's header says of the trajectories in it, for readers that need no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from rljob_core.errors import CorruptPayload
from rljob_core.messages.limits import LONGEST_NAME, MESSAGE_TRAJECTORIES
from rljob_core.trajectory import FinishReason, VersionSpan
from rljob_runtime.messaging.wire import Packed

BoundedName = Annotated[str, Field(max_length=LONGEST_NAME)]
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""What the coordinator compares and adds up; it finds out itself which of them cannot be true."""


@dataclass(frozen=True, slots=True)
class PayloadSummary:
    """One trajectory of a message as the message's header describes it, for readers that need no tokens.

    Attributes:
        tokens: of all segments.
        response_tokens: produced by the model.
        digest: of its block (see `digest`).
    """

    trajectory: BoundedName
    attempt: Number
    prompt: Number
    span: VersionSpan
    tokens: Number
    response_tokens: Number
    digest: BoundedName
    finish: FinishReason
    sample: BoundedName
    engine: BoundedName


def summarize(packed: Packed) -> PayloadSummary:
    """The summary of a packed trajectory."""
    trajectory = packed.trajectory
    return PayloadSummary(
        trajectory=trajectory.id,
        attempt=trajectory.attempt,
        prompt=trajectory.prompt,
        span=trajectory.span,
        tokens=sum(len(segment.tokens) for segment in trajectory.segments),
        response_tokens=trajectory.response_tokens,
        digest=packed.digest,
        finish=trajectory.finish,
        sample=trajectory.sample,
        engine=trajectory.engine,
    )


_SUMMARIES = TypeAdapter(Annotated[tuple[PayloadSummary, ...], Field(max_length=MESSAGE_TRAJECTORIES)])


def encode_summaries(summaries: Sequence[PayloadSummary]) -> str:
    """Summaries as one header value (JSON in ASCII, about 220 bytes each)."""
    return _SUMMARIES.dump_json(tuple(summaries), ensure_ascii=True).decode()


def decode_summaries(value: str) -> tuple[PayloadSummary, ...]:
    """Summaries from a header value.

    Raises:
        CorruptPayload: it does not decode, or holds more than a message may.
    """
    try:
        return _SUMMARIES.validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptPayload(f"not a payload summary: {where}: {first['msg']}") from error
