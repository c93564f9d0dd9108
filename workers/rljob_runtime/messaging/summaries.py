"""Summaries of payloads: what a message's header says of the trajectories in it, for readers that need no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from rljob_core.errors import CorruptPayload
from rljob_core.trajectory import FinishReason, VersionSpan
from rljob_runtime.messaging.wire import Packed


@dataclass(frozen=True, slots=True)
class PayloadSummary:
    """One trajectory of a message as the message's header describes it, for readers that need no tokens.

    Attributes:
        tokens: of all segments.
        response_tokens: produced by the model.
        digest: of its block (see `digest`).
    """

    trajectory: str
    attempt: int
    prompt: int
    span: VersionSpan
    tokens: int
    response_tokens: int
    digest: str
    finish: FinishReason
    sample: str
    engine: str


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


_SUMMARIES = TypeAdapter(tuple[PayloadSummary, ...])


def encode_summaries(summaries: Sequence[PayloadSummary]) -> str:
    """Summaries as one header value (JSON in ASCII, about 220 bytes each)."""
    return _SUMMARIES.dump_json(tuple(summaries), ensure_ascii=True).decode()


def decode_summaries(value: str) -> tuple[PayloadSummary, ...]:
    """Summaries from a header value.

    Raises:
        CorruptPayload: it does not decode.
    """
    try:
        return _SUMMARIES.validate_json(value)
    except ValidationError as error:
        raise CorruptPayload(f"not a payload summary: {error}") from error
