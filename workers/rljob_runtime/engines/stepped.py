"""A base for engines of one's own: a subclass computes the logits of the next tokens, and this module does the rest.

Between two steps the engine admits and cancels requests, swaps weights and ends responses. Steps run one at a time in
the engine's own thread, and so does taking weights; everything else happens in the event loop, so that nothing needs a
lock. Tokens are drawn as the engine `Torch` draws them.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rljob_core.errors import WeightsRejected
from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.spec import Inflight
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.events import EngineEvents, engine_failed, not_finite, nothing_to_generate
from rljob_runtime.engines.pending_swap import PendingSwap, fail_all
from rljob_runtime.engines.random_stream import draw, stream
from rljob_runtime.engines.stops import Decode, decoder

T = TypeVar("T")

#: Tokens of one character at most (the bytes of UTF-8).
_TOKENS_PER_CHARACTER = 4


@dataclass(slots=True, eq=False)
class _SteppedResponse:
    """A running response: `before` has the prompt and inherited tokens, the lists have what was generated since."""

    request: Request
    before: NDArray[np.int32]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the response so far, inherited ones included."""
        return self.request.inherited_tokens + len(self.tokens)

    def sequence(self) -> NDArray[np.int32]:
        """Prompt and response so far: int32 [p + n]."""
        return np.concatenate([self.before, np.array(self.tokens, np.int32)])

    def progress(self) -> Progress:
        """The response so far."""
        inherited = self.request.inherited
        columns = (
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
        )
        if inherited is None:
            return Progress(self.request.id, *columns)
        older = (inherited.tokens, inherited.logprobs, inherited.versions)
        joined = [
            np.concatenate([old, new], dtype=new.dtype) for old, new in zip(older, columns, strict=True)
        ]
        return Progress(self.request.id, *joined)


class SteppedEngine(ABC):
    """The port `Engine`, except for the two methods that compute.

    A request whose id is still being generated takes that one's place. For temperature 0 log-probabilities are those
    of the untempered distribution.

    Args:
        model_path: the initial model's folder, for the tokenizer in it.
        slots: trajectories generated at once.
        decode: text of token ids, for stop strings; by default that tokenizer's.
    """

    def __init__(self, model_path: Path, *, slots: int, decode: Decode | None = None) -> None:
        self.slots = slots
        self.version = -1
        self._path = model_path
        self._decode = decode
        self._waiting = deque[_SteppedResponse]()
        self._running = dict[str, _SteppedResponse]()
        self._swaps = deque[PendingSwap]()
        self._events = EngineEvents()
        self._wake = asyncio.Event()
        self._generated = 0
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")

    # ------------------------------------------------------------------------------------------ what a subclass says

    @abstractmethod
    def take(self, tensors: Mapping[str, Any] | None) -> None:
        """Use these weights, torch CPU tensors or NumPy arrays by name (`None`: the initial model's).

        Raises:
            WeightsRejected: they are not this model's; those in use stay in use.
        """

    @abstractmethod
    def logits(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """What may come next.

        Args:
            sequences: int32 [p + n] each, the prompts and responses so far of all running requests; `slots` at most.

        Returns:
            float32 [len(sequences), vocabulary].
        """

    # ------------------------------------------------------------------------------------------ the port

    async def start(self) -> None:
        """Take the initial weights, and begin."""
        await self._compute(self.take, None)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        self.cancel([request.id for request in requests])
        for request in requests:
            if (nothing := nothing_to_generate(request)) is not None:
                self._events.put([nothing])
                continue
            older = [] if request.inherited is None else [request.inherited.tokens]
            self._waiting.append(
                _SteppedResponse(request, np.concatenate([request.tokens, *older], dtype=np.int32))
            )
        self._wake.set()

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        gone = set(ids)
        self._events.forget(gone)
        self._waiting = deque(response for response in self._waiting if response.request.id not in gone)
        for name in gone & self._running.keys():
            del self._running[name]  # the token that the step under way draws for it is dropped
        self._wake.set()

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: the engine has ended.
        """
        return await self._events.take()

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        return [r.progress() for name, r in self._running.items() if r.length >= least.get(name, math.inf)]

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on (`None`: the initial ones); generation continues while they are read.

        Raises:
            WeightsRejected: the tensors do not verify or are not this model's; the old ones stay in use.
            GenerationFailed: the engine has ended.
        """
        weights: dict[str, Any] | None = None
        if isinstance(tensors, Sequence):  # they are read already
            weights = dict(tensors)
        elif tensors is not None:
            weights = await asyncio.to_thread(dict, tensors)
        if self._events.failure is not None:
            raise self._events.failure
        done = asyncio.get_running_loop().create_future()
        self._swaps.append(PendingSwap(version, inflight, done, weights))
        self._wake.set()
        await done

    def load(self) -> EngineLoad:
        """How busy it is; `tokens` counts those generated since the start."""
        return EngineLoad(len(self._running), len(self._waiting), self._generated)

    async def close(self) -> None:
        """Stop computing, after the step that is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown)
        self._events.end(None)

    # ------------------------------------------------------------------------------------------ the steps

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self._between_steps()
            if self._running:
                await self._step()
            else:
                await self._wake.wait()

    async def _between_steps(self) -> None:
        while self._swaps and (self._swaps[0].inflight != Inflight.KEEP or not self._running):
            await self._use(self._swaps[0])
            self._swaps.popleft()
        while not self._swaps and self._waiting and len(self._running) < self.slots:
            response = self._waiting.popleft()
            self._running[response.request.id] = response

    async def _use(self, swap: PendingSwap) -> None:
        try:
            await self._compute(self.take, swap.tensors)
        except WeightsRejected as error:
            swap.fail(error)
            return
        if swap.inflight == Inflight.RESTART:
            self._stop_all(lambda name: Stopped(name, "Restarted", failure=False))
        self.version = swap.version
        swap.succeed()

    async def _step(self) -> None:
        """One token for every running response; those that end with it are reported."""
        responses = list(self._running.values())
        try:
            tokens, logprobs = await self._compute(self._next_tokens, responses)
            for response, token, logprob in zip(responses, tokens.tolist(), logprobs.tolist(), strict=True):
                if self._running.get(response.request.id) is response:
                    self._append(response, token, logprob)
        except Exception as error:  # an engine outlives one batch; each of its responses says why
            self._stop_all(partial(engine_failed, error=error))

    def _next_tokens(
        self, responses: Sequence[_SteppedResponse]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and log-probabilities [n], in the engine's thread."""
        logits = np.asarray(self.logits([response.sequence() for response in responses]), np.float32)
        if logits.ndim != 2 or len(logits) != len(responses):
            raise ValueError(f"logits of {len(responses)} sequences have the shape {logits.shape}")
        requests = [response.request for response in responses]
        streams = np.array([stream(r.request.seed, r.length) for r in responses], np.uint64)
        return sample(
            logits,
            uniform=draw(streams),
            temperature=np.array([request.temperature for request in requests], np.float32),
            top_p=np.array([request.top_p for request in requests], np.float32),
        )

    def _append(self, response: _SteppedResponse, token: int, logprob: float) -> None:
        request = response.request
        response.tokens.append(token)
        response.logprobs.append(logprob)
        response.versions.append(self.version)
        self._generated += 1
        event: EngineEvent
        if not math.isfinite(logprob):
            event = not_finite(request.id, self.version)
        elif (stopped := self._stops(response)) or response.length == request.max_tokens:
            ended = response.progress()
            finish = FinishReason.STOP if stopped else FinishReason.LENGTH
            event = Completed(ended.id, ended.tokens, ended.logprobs, ended.versions, finish)
        else:
            return
        del self._running[request.id]
        self._events.put([event])

    def _stops(self, response: _SteppedResponse) -> bool:
        """Whether its newest token ends a response."""
        request = response.request
        if response.tokens[-1] in request.stop_tokens:
            return True
        if not request.stop:
            return False
        self._decode = decoder(self._decode, self._path)
        size = _TOKENS_PER_CHARACTER * (max(map(len, request.stop)) + 1)
        tail = response.sequence()[len(request.tokens) :][-size:]
        text = self._decode(tail.tolist())
        return any(stop in text for stop in request.stop)

    def _stop_all(self, stopped: Callable[[str], Stopped]) -> None:
        self._events.put([stopped(name) for name in self._running])
        self._running.clear()

    async def _compute(self, function: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *values)

    def _ended(self, task: asyncio.Task[None]) -> None:
        failure = self._events.end(None if task.cancelled() else task.exception())
        fail_all(self._swaps, failure)


def sample(
    logits: NDArray[np.float32],
    *,
    uniform: NDArray[np.float32],
    temperature: NDArray[np.float32],
    top_p: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw a token per row, by inverse CDF, token for token as `torch.sampler` does for the engine `Torch`.

    Args:
        logits: float32 [n, vocabulary].
        uniform: float32 [n], in (0, 1].
        temperature: float32 [n]; 0 takes the likeliest token.
        top_p: float32 [n]; tokens are drawn from the smallest set of likeliest ones with this probability (ties at
            its edge are all in it).

    Returns:
        Tokens int64 [n] and their log-probabilities float32 [n] under the tempered distribution before truncation by
        `top_p` (for temperature 0 under the untempered one).
    """
    greedy = temperature == 0
    # A row that is not finite says so by its log-probability.
    with np.errstate(invalid="ignore", over="ignore"):
        logprobs = _log_softmax(logits / np.where(greedy, 1, temperature)[:, None])
        weights = _nucleus(np.exp(logprobs), top_p)
        mass = weights.cumsum(-1)
        # The first token whose cumulated weight reaches a point of (0, total] has a weight above 0.
        tokens = (mass < uniform[:, None] * mass[:, -1:]).sum(-1)
    tokens = np.where(greedy, logits.argmax(-1), np.minimum(tokens, logits.shape[1] - 1))
    return tokens, np.take_along_axis(logprobs, tokens[:, None], 1)[:, 0].astype(np.float32)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max(-1, keepdims=True)
    found: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


def _nucleus(weights: NDArray[np.float32], top_p: NDArray[np.float32]) -> NDArray[np.float32]:
    """Zero the weights outside each row's nucleus; rows whose `top_p` is 1 stay as they are."""
    ordered = -np.sort(-weights, -1)
    before = ordered.cumsum(-1) - ordered
    inside = (before < top_p[:, None]).sum(-1, keepdims=True)
    edge = np.take_along_axis(ordered, np.maximum(inside - 1, 0), 1)
    return np.where((weights >= edge) | (top_p[:, None] >= 1), weights, np.float32(0))
