"""Schedules the requests of an engine that answers each with a stream: which run, which wait, and when each has ended.

As many streams run at once as the engine has slots. A swap of weights shuts a gate, and no stream begins while it is
shut.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import count

import numpy as np

from rljob_core.errors import GenerationFailed
from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.events import EngineEvents, engine_failed, not_finite, refused, unfit
from rljob_runtime.engines.profile import StepMeter
from rljob_runtime.engines.stops import Decode, Mark, StopTable
from rljob_runtime.engines.streamed.request import Chunk, EngineEnded, StreamedRequest

#: Streams of a request in a row that end without a token, a reason or a swap, before it fails.
_CUTS = 8


class RequestScheduler:
    """Requests from their submission to their end.

    Args:
        slots: streamed at once.
        longest: prompt and response together at most, in tokens.
        vocabulary: token ids that the model has.
        decode: gives the tokenizer's decoder when a request has stop strings.
        generate: streams what follows a request's `prompt`, its `left` tokens at most; closing the stream withdraws it.
        unsupported: why the engine cannot sample as a request asks; empty if it can.
        version: of the weights in use.

    Attributes:
        longest: as above; it may shrink until the first request comes.
    """

    def __init__(
        self,
        *,
        slots: int,
        longest: int,
        vocabulary: int,
        decode: Callable[[], Decode],
        generate: Callable[[StreamedRequest], AsyncGenerator[Chunk, None]],
        unsupported: Callable[[Request], str],
        version: Callable[[], int],
    ) -> None:
        self.longest = longest
        self._slots = slots
        self._vocabulary = vocabulary
        self._generate = generate
        self._unsupported = unsupported
        self._version = version
        self._stops = StopTable(vocabulary=vocabulary, decode=decode)
        self._events = EngineEvents()
        self._numbers = count()
        self._requests: dict[str, StreamedRequest] = {}
        self._running: dict[int, StreamedRequest] = {}
        self._waiting: deque[StreamedRequest] = deque()
        self._tokens = 0
        self._gates = 0
        self._open_gate = asyncio.Event()
        self._open_gate.set()
        self._ended = asyncio.Event()  # a running request has
        self._cleaning: set[asyncio.Task[None]] = set()
        self._meter = StepMeter()

    # ------------------------------------------------------------------------------------------ submitted

    def submit(self, requests: Sequence[Request]) -> None:
        """Stream these, in order."""
        self.cancel([request.id for request in requests])
        for request in requests:
            stopped = unfit(request, longest=self.longest, vocabulary=self._vocabulary)
            if stopped is None and (unsupported := self._unsupported(request)):
                stopped = refused(request, "Unsupported", unsupported)
            ending = 0
            if stopped is None:
                try:
                    ending = self._stops.ending(request.stop_tokens, request.stop)
                except Exception as error:  # the tokenizer's
                    stopped = engine_failed(request.id, error)
            if stopped is not None:
                self._events.put([stopped])
                continue
            streamed = StreamedRequest(next(self._numbers), request, ending)
            self._requests[request.id] = streamed
            self._waiting.append(streamed)
        self._admit()

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        for name in ids:
            streamed = self._requests.get(name)
            if streamed is not None:
                self._leave(streamed)
        self._events.forget(set(ids))
        self._admit()

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: there will be no more.
        """
        return await self._events.take()

    def progress(self, least: Mapping[str, int]) -> list[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        return [
            Progress(streamed.request.id, *streamed.arrays)
            for streamed in self._running.values()
            if len(streamed.tokens) >= least.get(streamed.request.id, math.inf)
        ]

    def load(self) -> EngineLoad:
        """How busy it is; `tokens` counts those generated since the start."""
        return EngineLoad(len(self._running), len(self._waiting), self._tokens, self._meter.profile)

    @property
    def running(self) -> int:
        """Streams under way."""
        return len(self._running)

    # ------------------------------------------------------------------------------------------ around a swap

    def shut_gate(self) -> None:
        """Let no stream begin, until the gate is opened as often as it was shut."""
        self._gates += 1
        self._open_gate.clear()
        self._meter.disturb()

    def open_gate(self) -> None:
        """Undo a `shut_gate`."""
        self._gates -= 1
        if not self._gates:
            self._open_gate.set()
        self._admit()

    def restart_all(self) -> None:
        """End what runs, to be generated again."""
        for streamed in list(self._running.values()):
            self._finish(streamed, Stopped(id=streamed.request.id, reason="Restarted", failure=False))

    async def all_ended(self) -> None:
        """Wait until nothing runs.

        Raises:
            GenerationFailed: there will be no more events.
        """
        while self._running:
            self._ended.clear()
            await self._ended.wait()
            self.check_alive()

    # ------------------------------------------------------------------------------------------ the end

    @property
    def failed(self) -> bool:
        """Whether there will be no more events."""
        return self._events.failure is not None

    def check_alive(self) -> None:
        """Raise why there will be no more events, if so.

        Raises:
            GenerationFailed: it is so.
        """
        if self._events.failure is not None:
            raise self._events.failure

    def end(self, error: BaseException | None) -> GenerationFailed:
        """There will be no more events, because of an error or of being closed; what runs stays, for `progress`."""
        failure = self._events.end(error)
        self._ended.set()
        for streamed in self._running.values():
            if streamed.task is not None and streamed.task is not asyncio.current_task():
                streamed.task.cancel()
        return failure

    async def withdrawn(self) -> None:
        """Wait until all streams are closed, after `end`."""
        tasks = [streamed.task for streamed in self._running.values() if streamed.task is not None]
        await asyncio.gather(*tasks, *self._cleaning, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ streams

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots and not self._gates and not self.failed:
            streamed = self._waiting.popleft()
            self._running[streamed.number] = streamed
            streamed.task = asyncio.create_task(self._run(streamed))
            self._meter.disturb()  # a prompt is computed

    async def _run(self, streamed: StreamedRequest) -> None:
        """Stream a response until it has ended."""
        cuts = 0
        try:
            while cuts < _CUTS:
                await self._open_gate.wait()
                version, before = self._version(), len(streamed.tokens)
                async with aclosing(self._generate(streamed)) as chunks:
                    async for chunk in chunks:
                        event = self._append(streamed, chunk, version)
                        if event is not None:
                            self._finish(streamed, event)
                            return
                cuts = 0 if len(streamed.tokens) > before or self._version() != version else cuts + 1
            detail = "the engine ended it again and again, without a token"
            self._finish(streamed, refused(streamed.request, "EngineFailed", detail))
        except EngineEnded as error:
            self.end(error.__cause__ or error)
        except Exception as error:  # an engine outlives one request
            self._finish(streamed, engine_failed(streamed.request.id, error))

    def _append(self, streamed: StreamedRequest, chunk: Chunk, version: int) -> EngineEvent | None:
        """Append a chunk to a response; the event that ends the request, if the chunk ends it."""
        request, name = streamed.request, streamed.request.id
        versions = [version] * len(chunk.tokens) if chunk.versions is None else chunk.versions
        for token, logprob, made_by in zip(chunk.tokens, chunk.logprobs, versions, strict=True):
            if not math.isfinite(logprob):
                return not_finite(name, made_by)
            if not 0 <= token < self._vocabulary:
                detail = f"{token} came; the model's token ids are 0 to {self._vocabulary - 1}"
                return refused(request, "UnknownToken", detail)
            streamed.tokens.append(token)
            streamed.logprobs.append(logprob)
            streamed.versions.append(made_by)
            self._tokens += 1
            if self._stopped(streamed, token):
                return Completed(name, *streamed.arrays, FinishReason.STOP)
            if not streamed.left:
                return Completed(name, *streamed.arrays, FinishReason.LENGTH)
        if chunk.tokens:
            self._meter.tokens(len(chunk.tokens), self._running.values())
        if chunk.finish in ("stop", "length"):  # neither a token nor a length that was asked for
            detail = f"it ended ({chunk.finish}) after {len(streamed.tokens)} tokens, without a reason"
            return refused(request, "EngineFailed", detail)
        return None

    def _stopped(self, streamed: StreamedRequest, token: int) -> bool:
        mark = self._stops.marks[streamed.ending, token]
        return mark == Mark.STOP or (
            mark == Mark.MAYBE and self._stops.completed(streamed.ending, np.array(streamed.tokens, np.int64))
        )

    def _finish(self, streamed: StreamedRequest, event: EngineEvent) -> None:
        """Report a request's end."""
        self._leave(streamed)
        self._events.put([event])
        self._admit()

    def _leave(self, streamed: StreamedRequest) -> None:
        if self._requests.get(streamed.request.id) is streamed:
            del self._requests[streamed.request.id]
        if self._running.pop(streamed.number, None) is None:
            self._waiting.remove(streamed)
        self._ended.set()
        self._meter.disturb()
        task = streamed.task
        if task is not None:
            # It withdraws the request yet.
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)
            if task is not asyncio.current_task():
                task.cancel()
