"""A queue of an engine's events, and the checks of requests that every engine makes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from rljob_core.errors import GenerationFailed
from rljob_core.ports import EngineEvent, Request, Stopped

PROMPT_TOO_LONG = "PromptTooLong"
"""Reason of a request that no engine of the model can serve with its maxTokens."""


def refused(request: Request, reason: str, detail: str) -> Stopped:
    """The failure of a request that is not begun."""
    return Stopped(request.id, reason, failure=True, detail=detail)


def engine_failed(request: str, error: BaseException) -> Stopped:
    """The failure of a request over which the engine, or what it uses, has raised."""
    return Stopped(request, "EngineFailed", failure=True, detail=f"{type(error).__name__}: {error}")


def not_finite(request: str, version: int) -> Stopped:
    """The failure of a request for which the model computes no probabilities."""
    detail = f"version {version} gives no finite probabilities"
    return Stopped(request, "NotFinite", failure=True, detail=detail)


def nothing_to_generate(request: Request) -> Stopped | None:
    """Why there is nothing to generate for a request, if so; None if there is."""
    if not len(request.tokens) or request.max_tokens < 1:
        return refused(request, "EmptyRequest", "prompt and maxTokens must be at least one token")
    if request.inherited_tokens >= request.max_tokens:
        detail = f"{request.inherited_tokens} tokens are inherited, maxTokens is {request.max_tokens}"
        return refused(request, "NothingLeft", detail)
    return None


def unfit(request: Request, *, longest: int, vocabulary: int) -> Stopped | None:
    """Why a model cannot serve a request, or there is nothing to generate for it; None if it can.

    Args:
        request: what is asked for.
        longest: prompt and response together at most, in tokens.
        vocabulary: token ids that the model has.
    """
    if (nothing := nothing_to_generate(request)) is not None:
        return nothing
    tokens = np.asarray(request.tokens)
    if len(tokens) + request.max_tokens > longest:
        return refused(
            request,
            PROMPT_TOO_LONG,
            f"a prompt of {len(tokens)} tokens and maxTokens {request.max_tokens} pass the "
            f"{longest} tokens that the model's context and the engine's maxLength allow",
        )
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        return refused(request, "UnknownToken", f"the model's token ids are 0 to {vocabulary - 1}")
    return None


class EngineEvents:
    """Events in order; all methods are called in one event loop."""

    def __init__(self) -> None:
        self.failure: GenerationFailed | None = None
        """Why there will be no more events."""
        self._events: list[EngineEvent] = []
        self._changed = asyncio.Event()

    def put(self, events: Iterable[EngineEvent]) -> None:
        """Report these."""
        self._events.extend(events)
        if self._events:
            self._changed.set()

    def forget(self, ids: Collection[str]) -> None:
        """Drop what was not taken yet about these."""
        self._events = [event for event in self._events if event.id not in ids]

    def end(self, error: BaseException | None) -> GenerationFailed:
        """There will be no more, because of an error or because the engine was closed; what `take` will raise."""
        if self.failure is None:
            reason = "the engine is closed" if error is None else f"the engine died: {error!r}"
            self.failure = GenerationFailed(reason)
            self.failure.__cause__ = error
        self._changed.set()
        return self.failure

    async def take(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: there will be no more.
        """
        while not self._events:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        events, self._events = self._events, []
        return events
