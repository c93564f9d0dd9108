"""What an engine generates, by the name that each assignment has in its engine, and the segments that come of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.messages import EngineWorkBatch, Generate
from rljob_core.ports import Completed
from rljob_core.trajectory import Segment, Source, VersionSpan, group_of


def request_id(trajectory: str, attempt: int) -> str:
    """The name of an assignment within its engine: trajectory and attempt."""
    return f"{trajectory}@{attempt}"


def request_of(work: Generate) -> str:
    """The name of an assignment within its engine."""
    return request_id(work.trajectory, work.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Generate):
    """What this engine is to generate, with the text of its prompt, which siblings of one message share."""

    text: str

    @classmethod
    def of(cls, work: Generate, batch: EngineWorkBatch) -> Assignment:
        """Work that has come in this message."""
        values = {field.name: getattr(work, field.name) for field in fields(work)}
        return cls(**values, text=batch.texts[group_of(work.trajectory)])


@dataclass(frozen=True, slots=True)
class Running:
    """An assignment that the engine generates.

    Attributes:
        work: the assignment.
        prompt: what the engine continues, int32 [p]: its prompt's tokens, and in an episode all that have followed.
        earlier: tokens behind the prompt that an episode has already.
        oldest: version of the newest of them: later ones are not older.
        made: how many of them the model has made.
    """

    work: Assignment
    prompt: NDArray[np.int32]
    earlier: int = 0
    oldest: int = 0
    made: int = 0

    @property
    def prefill_tokens(self) -> int:
        """How many tokens the engine computes before it makes one: of the prompt, and of what the response inherits."""
        inherited = self.work.inherited
        return len(self.prompt) + (0 if inherited is None else inherited.tokens)


def requests_of(running: Iterable[Running]) -> set[str]:
    """The names of the assignments that an engine generates, of whichever turn."""
    return {request_of(one.work) for one in running}


@dataclass(frozen=True, slots=True)
class OpenEpisode:
    """An assignment whose episode is played: behind its first response, or before it, as its environment speaks first.

    Attributes:
        work: the assignment.
        task: plays it.
    """

    work: Assignment
    task: asyncio.Task[None]


def given(source: Source, tokens: Any) -> Segment:
    """Tokens that no model has made, and that are not trained on."""
    size = len(tokens)
    return Segment(
        source,
        np.asarray(tokens, np.int32),
        np.zeros(size, np.uint8),
        np.zeros(size, np.float32),
        np.full(size, -1, np.int32),
    )


def generated(completed: Completed) -> Segment:
    """A response of the model."""
    return Segment(
        Source.MODEL,
        np.asarray(completed.tokens, np.int32),
        np.ones(len(completed.tokens), np.uint8),
        np.asarray(completed.logprobs, np.float32),
        np.asarray(completed.versions, np.int32),
    )


def span_of(segment: Segment) -> VersionSpan:
    """The versions of a response's tokens, of which there is one at least."""
    return VersionSpan(int(segment.versions.min()), int(segment.versions.max()))
