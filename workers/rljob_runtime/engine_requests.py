"""What engines have in common whose unit is a request that answers with a stream of tokens: vLLM, or a server.

This side keeps the books. It admits as many requests as the engine has slots, gathers tokens with their
log-probabilities and versions, ends responses, and orders everything around a swap of weights:

    staged (verified, generation goes on) → gate shut, nothing is admitted
      Keep: until what runs has ended · Restart: what runs is stopped · Update: it stays
    → replaced → gate open

An engine either goes on with a stream under new weights and tells which version made which token, or it *cuts* the
stream before it replaces weights: then a new one begins once the gate is open, with the tokens so far behind the
prompt. Either way no token is recorded with a newer version than the one that made it.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rljob_core.errors import GenerationFailed, WeightsRejected
from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.spec import Inflight
from rljob_core.trajectory import Finish
from rljob_runtime.engine_events import EngineEvents, nothing_to_generate
from rljob_runtime.engine_profile import StepMeter
from rljob_runtime.engine_staging import Staging
from rljob_runtime.engine_torch_stops import Decode, Mark, StopTable
from rljob_runtime.model_settings import ModelSettings, tensor_shapes

#: Streams of a request in a row that end without a token, a reason or a swap, before it fails.
_CUTS = 8


class EngineDied(Exception):
    """The engine behind the requests is gone, and all of them with it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a stream has brought: one token or some.

    Attributes:
        tokens: their ids.
        logprobs: theirs, under the tempered distribution before truncation by `top_p`.
        versions: of the weights that made them; None: of those in use when the stream began, which cuts it.
        finish: why there will be no more: `cut` if it should begin again, "" if there may be more.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int] | None = None
    finish: Literal["", "stop", "length", "cut"] = ""


@dataclass(slots=True, eq=False)
class Held:
    """A request that the engine has, and its response so far, inherited tokens included.

    Attributes:
        number: no other request of this engine has it.
        ending: row of the stop table.
        seen: token id → what it means for this request.
    """

    number: int
    request: Request
    ending: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        made = self.request.inherited
        if made is not None:
            self.tokens = np.asarray(made.tokens).tolist()
            self.logprobs = np.asarray(made.logprobs).tolist()
            self.versions = np.asarray(made.versions).tolist()

    @property
    def prompt(self) -> list[int]:
        """Tokens to go on from."""
        return [*np.asarray(self.request.tokens).tolist(), *self.tokens]

    @property
    def left(self) -> int:
        """Tokens that it may still have."""
        return self.request.max_tokens - len(self.tokens)

    @property
    def length(self) -> int:
        """Of its context, in tokens."""
        return len(self.request.tokens) + len(self.tokens)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The response: int32, float32, int32 arrays [n]."""
        return (
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
        )


class RequestEngine(ABC):
    """The port `Engine` over `_open`, `_generate`, `_replace` and `_shut`.

    Args:
        model: settings of the initial model, whose folder has its weights.
        slots: requests that are streamed at once.
        max_length: prompt and response together at most, in tokens; None is the model's context.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.
        staging: where weights are written to; None chooses.
    """

    def __init__(
        self,
        model: ModelSettings,
        *,
        slots: int,
        max_length: int | None,
        decode: Decode | None,
        staging: Path | None = None,
    ) -> None:
        self.slots = slots
        self.version = -1
        self._model = model
        self._longest = min(max_length or model.context, model.context)
        self._decode = decode
        self._stops = StopTable(vocabulary=model.vocabulary, decode=self._decoder)
        # A tied output embedding is written by some, and needed by none.
        optional = frozenset({"lm_head.weight"}) if model.tied else frozenset[str]()
        self._staging = Staging(tensor_shapes(model.folder), optional=optional, root=staging)
        self._staged: Path | None = None
        self._events = EngineEvents()
        self._numbers = count()
        self._held: dict[str, Held] = {}
        self._running: dict[int, Held] = {}
        self._waiting: deque[Held] = deque()
        self._tokens = 0
        self._swaps = asyncio.Lock()
        self._gates = 0
        self._open_gate = asyncio.Event()
        self._open_gate.set()
        self._ended = asyncio.Event()  # a running request has
        self._cleaning: set[asyncio.Task[None]] = set()
        self._meter = StepMeter()
        self._closed = False

    # ------------------------------------------------------------------------------------------ of the engine behind

    @abstractmethod
    async def _open(self) -> None:
        """Start it, with the initial weights.

        Raises:
            SpecError: it cannot serve this model with these options.
        """

    @abstractmethod
    def _generate(self, held: Held) -> AsyncGenerator[Chunk, None]:
        """Stream what follows `held.prompt`, `held.left` tokens at most; closing it withdraws the request.

        Raises:
            EngineDied: the engine is gone.
            Exception: this request fails.
        """

    @abstractmethod
    async def _replace(self, version: int, folder: Path | None) -> None:
        """Use the weights in a folder of safetensors files as `version` (None: those in use).

        Streams are cut before, or their chunks have versions. Those of other requests do not begin meanwhile.

        Raises:
            WeightsRejected: it cannot, and goes on with the old ones.
            Exception: it cannot, and does not know which ones it has.
        """

    @abstractmethod
    async def _shut(self) -> None:
        """Stop it and free its memory; also of one that has not started, or died."""

    def _unable(self, request: Request) -> str:  # noqa: ARG002
        """Why it cannot sample as a request asks; empty if it can."""
        return ""

    # ------------------------------------------------------------------------------------------ the port

    async def start(self) -> None:
        """Load the model, or find the server.

        Raises:
            SpecError: the engine cannot serve this model with these options.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        self.cancel([request.id for request in requests])
        for request in requests:
            problem = nothing_to_generate(request) or self._misfit(request) or self._unable(request)
            ending = 0
            if not problem:
                try:
                    ending = self._stops.ending(request.stop_tokens, request.stop)
                except Exception as error:  # the tokenizer's
                    problem = _failure(error)
            if problem:
                self._events.put([Stopped(id=request.id, reason=problem, failure=True)])
                continue
            held = Held(next(self._numbers), request, ending)
            self._held[request.id] = held
            self._waiting.append(held)
        self._admit()

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        for name in ids:
            held = self._held.get(name)
            if held is not None:
                self._leave(held)
        self._events.forget(set(ids))
        self._admit()

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: the engine is closed, or died.
        """
        return await self._events.take()

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        return [
            Progress(held.request.id, *held.arrays)
            for held in self._running.values()
            if len(held.tokens) >= least.get(held.request.id, math.inf)
        ]

    def load(self) -> EngineLoad:
        """How busy it is; `tokens` counts those generated since the start."""
        return EngineLoad(len(self._running), len(self._waiting), self._tokens, self._meter.profile)

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on (`None`: the initial model's).

        Everything is read, and so verified, before anything is replaced, while generation goes on.

        Raises:
            WeightsRejected: the tensors do not verify or are not this model's; the old ones stay in use.
            GenerationFailed: the engine is closed, or died.
        """
        self._alive()
        shut = inflight == Inflight.KEEP  # at once: what is submitted from now on is for the new weights
        if shut:
            self._shut_gate()
        try:
            try:
                folder = await self._stage(version, tensors)
            except Exception:
                self._alive()  # an engine that is being closed fails in ways of its own
                raise
            async with self._swaps:
                if not shut:
                    self._shut_gate()
                    shut = True
                self._alive()
                if inflight == Inflight.RESTART:
                    for held in list(self._running.values()):
                        self._finish(held, Stopped(id=held.request.id, reason="Restarted", failure=False))
                while inflight == Inflight.KEEP and self._running:
                    self._ended.clear()
                    await self._ended.wait()
                    self._alive()
                await self._use(version, folder)
        finally:
            if shut:
                self._gates -= 1
            if not self._gates:
                self._open_gate.set()
            self._admit()

    async def close(self) -> None:
        """Stop generating and free the memory."""
        if self._closed:
            return
        self._closed = True
        self._end(None)
        tasks = [held.task for held in self._running.values() if held.task is not None]
        await asyncio.gather(*tasks, *self._cleaning, return_exceptions=True)
        await self._shut()
        await asyncio.to_thread(self._staging.close)

    # ------------------------------------------------------------------------------------------ requests

    def _misfit(self, request: Request) -> str:
        """Why the model cannot take a request; empty if it can."""
        tokens = np.asarray(request.tokens)
        if len(tokens) + request.max_tokens > self._longest:
            return (
                f"PromptTooLong: a prompt of {len(tokens)} tokens and maxTokens {request.max_tokens} pass the "
                f"{self._longest} tokens that the model's context and the engine's maxLength allow"
            )
        if tokens.min() < 0 or tokens.max() >= self._model.vocabulary:
            return f"UnknownToken: the model's token ids are 0 to {self._model.vocabulary - 1}"
        return ""

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.slots and not self._gates and not self._failed:
            held = self._waiting.popleft()
            self._running[held.number] = held
            held.task = asyncio.create_task(self._run(held))
            self._meter.disturb()  # a prompt is computed

    async def _run(self, held: Held) -> None:
        """Stream a response until it has ended."""
        cuts = 0
        try:
            while cuts < _CUTS:
                await self._open_gate.wait()
                version, before = self.version, len(held.tokens)
                async with aclosing(self._generate(held)) as chunks:
                    async for chunk in chunks:
                        event = self._take(held, chunk, version)
                        if event is not None:
                            self._finish(held, event)
                            return
                cuts = 0 if len(held.tokens) > before or self.version != version else cuts + 1
            reason = "EngineFailed: the engine ended it again and again, without a token"
            self._finish(held, Stopped(id=held.request.id, reason=reason, failure=True))
        except EngineDied as error:
            self._end(error.__cause__ or error)
        except Exception as error:  # an engine outlives one request
            self._finish(held, Stopped(id=held.request.id, reason=_failure(error), failure=True))

    def _take(self, held: Held, chunk: Chunk, version: int) -> EngineEvent | None:
        """Append what came; the event that ends the request, if it does."""
        name = held.request.id
        versions = [version] * len(chunk.tokens) if chunk.versions is None else chunk.versions
        for token, logprob, made_by in zip(chunk.tokens, chunk.logprobs, versions, strict=True):
            if not math.isfinite(logprob):
                reason = f"NotFinite: version {made_by} gives no finite probabilities"
                return Stopped(id=name, reason=reason, failure=True)
            if not 0 <= token < self._model.vocabulary:
                reason = (
                    f"UnknownToken: {token} came; the model's token ids are 0 to {self._model.vocabulary - 1}"
                )
                return Stopped(id=name, reason=reason, failure=True)
            held.tokens.append(token)
            held.logprobs.append(logprob)
            held.versions.append(made_by)
            self._tokens += 1
            if self._stopped(held, token):
                return Completed(name, *held.arrays, Finish.STOP)
            if not held.left:
                return Completed(name, *held.arrays, Finish.LENGTH)
        if chunk.tokens:
            self._meter.tokens(len(chunk.tokens), self._running.values())
        if chunk.finish in ("stop", "length"):  # neither a token nor a length that was asked for
            reason = (
                f"EngineFailed: it ended ({chunk.finish}) after {len(held.tokens)} tokens, without a reason"
            )
            return Stopped(id=name, reason=reason, failure=True)
        return None

    def _stopped(self, held: Held, token: int) -> bool:
        mark = self._stops.marks[held.ending, token]
        return mark == Mark.STOP or (
            mark == Mark.MAYBE and self._stops.completed(held.ending, np.array(held.tokens, np.int64))
        )

    def _finish(self, held: Held, event: EngineEvent) -> None:
        """Report a request's end."""
        self._leave(held)
        self._events.put([event])
        self._admit()

    def _leave(self, held: Held) -> None:
        if self._held.get(held.request.id) is held:
            del self._held[held.request.id]
        if self._running.pop(held.number, None) is None:
            self._waiting.remove(held)
        self._ended.set()
        self._meter.disturb()
        task = held.task
        if task is not None:
            # It withdraws the request yet.
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)
            if task is not asyncio.current_task():
                task.cancel()

    # ------------------------------------------------------------------------------------------ weights

    async def _stage(self, version: int, tensors: Iterable[tuple[str, Any]] | None) -> Path | None:  # noqa: ARG002
        """A folder with these weights; None if they are those in use.

        Raises:
            WeightsRejected: they do not verify, are not this model's, or cannot be had.
        """
        if tensors is not None:
            return await asyncio.to_thread(self._staging.write, tensors)
        return None if self._staged is None else self._model.folder

    async def _use(self, version: int, folder: Path | None) -> None:
        try:
            await self._replace(version, folder)
        except WeightsRejected:
            await self._drop(folder)
            raise
        except Exception as error:  # which weights it has now, nobody knows
            raise self._end(error) from error
        self.version = version
        if folder is not None:
            await self._drop(self._staged)
            self._staged = folder

    async def _drop(self, folder: Path | None) -> None:
        if folder is not None and folder != self._model.folder:
            await asyncio.to_thread(self._staging.drop, folder)

    def _shut_gate(self) -> None:
        self._gates += 1
        self._open_gate.clear()
        self._meter.disturb()

    # ------------------------------------------------------------------------------------------ the end

    @property
    def _failed(self) -> bool:
        return self._events.failure is not None

    def _alive(self) -> None:
        if self._events.failure is not None:
            raise self._events.failure

    def _end(self, error: BaseException | None) -> GenerationFailed:
        """There will be no more events; what runs stays as it is, for `progress`."""
        failure = self._events.end(error)
        self._ended.set()
        for held in self._running.values():
            if held.task is not None and held.task is not asyncio.current_task():
                held.task.cancel()
        return failure

    def _decoder(self) -> Decode:
        if self._decode is not None:
            return self._decode
        from rljob_runtime.tokenizer import Tokenizer

        return Tokenizer(self._model.folder).decode


def _failure(error: Exception) -> str:
    return f"EngineFailed: {type(error).__name__}: {error}"
