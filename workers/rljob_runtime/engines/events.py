"""A queue of an engine's events, and the checks of requests that every engine makes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from rljob_core.errors import GenerationFailed
from rljob_core.ports import EngineEvent, Request


def nothing_to_generate(request: Request) -> str:
    """Why there is nothing to generate for a request, if so; empty if there is."""
    if not len(request.tokens) or request.max_tokens < 1:
        return "EmptyRequest: prompt and maxTokens must be at least one token"
    if request.inherited_tokens >= request.max_tokens:
        return (
            f"NothingLeft: {request.inherited_tokens} tokens are inherited, maxTokens is {request.max_tokens}"
        )
    return ""


def unfit(request: Request, *, longest: int, vocabulary: int) -> str:
    """Why a model cannot serve a request, or there is nothing to generate for it; empty if it can.

    Args:
        request: what is asked for.
        longest: prompt and response together at most, in tokens.
        vocabulary: token ids that the model has.
    """
    if problem := nothing_to_generate(request):
        return problem
    tokens = np.asarray(request.tokens)
    if len(tokens) + request.max_tokens > longest:
        return (
            f"PromptTooLong: a prompt of {len(tokens)} tokens and maxTokens {request.max_tokens} pass the "
            f"{longest} tokens that the model's context and the engine's maxLength allow"
        )
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        return f"UnknownToken: the model's token ids are 0 to {vocabulary - 1}"
    return ""


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
