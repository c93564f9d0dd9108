"""The engine `Emulated` sleeps by a profile instead of computing, to benchmark everything around an engine.

Running responses advance together, one token per decode step. The engine sleeps until the next response ends or
something changes, never once per token. It keeps times against the event loop's clock: a step's end follows from the
previous one's, however late the loop was, so that nothing drifts, and an event loop with virtual time works too.

A response's length depends on the options' seed, the prompt and the request's seed alone:
median · exp(promptSigma · z(prompt) + sqrt(sigma² − promptSigma²) · z(prompt, request)) with standard normal z,
clipped to min and max, and cut at the request's max_tokens. Its tokens repeat the prompt's (they are in every
vocabulary) with log-probability −1.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.spec import Inflight
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions, LengthOptions
from rljob_runtime.engines.events import EngineEvents, nothing_to_generate
from rljob_runtime.engines.pending_swap import PendingSwap, fail_all


def response_length(options: LengthOptions, prompt: NDArray[np.int32], seed: int) -> int:
    """Tokens of the response to a prompt (int32 [p]) for a request's seed."""
    text = prompt.tobytes()
    within = math.sqrt(options.sigma**2 - options.prompt_sigma**2)
    deviation = options.prompt_sigma * _normal(options.seed, text) + within * _normal(
        options.seed, text, seed
    )
    return round(min(max(options.median * math.exp(deviation), options.min), options.max))


def _normal(*key: int | bytes) -> float:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return NormalDist().inv_cdf((int.from_bytes(digest) + 0.5) / 2**64)


@dataclass(slots=True)
class _EmulatedResponse:
    """One response; `first` is the step of its first token that is not inherited."""

    request: Request
    prompt: NDArray[np.int32]
    length: int
    finish: FinishReason
    first: int = 0
    cancelled: bool = False

    @property
    def end(self) -> int:
        """Step after its last token's."""
        return self.first + self.length - self.request.inherited_tokens

    def tokens(self, step: int) -> int:
        """How many it has before a step, inherited ones included."""
        return self.request.inherited_tokens + step - self.first


class EmulatedEngine:
    """The port `Engine`; see `EmulatedEngineOptions` for its options.

    Sequences join and leave, and weights are swapped, at the end of the step that is under way. A request whose id
    is still being generated takes that one's place.
    """

    def __init__(self, options: EmulatedEngineOptions) -> None:
        self.slots = options.slots
        self.version = -1
        self._options = options
        self._waiting: deque[_EmulatedResponse] = deque()
        self._running: list[_EmulatedResponse] = []
        self._swaps: deque[PendingSwap] = deque()
        self._events = EngineEvents()
        self._wake = asyncio.Event()
        self._changed = False
        self._step = 0  # steps done
        self._since = 0.0  # loop time at which the last one ended
        self._context = 0  # tokens of the running ones, prompts included
        self._generated = 0
        self._versions: list[tuple[int, int]] = [
            (0, -1)
        ]  # (first step, version), as far as running ones need
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to run."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        self.cancel([request.id for request in requests])
        for request in requests:
            prompt = np.asarray(request.tokens, np.int32)
            if problem := nothing_to_generate(request):
                self._events.put([Stopped(id=request.id, reason=problem, failure=True)])
                continue
            # One more token at least: engines with other lengths may have generated what it inherits.
            length = response_length(self._options.lengths, prompt, request.seed)
            length = max(length, request.inherited_tokens + 1)
            finish = FinishReason.STOP if length <= request.max_tokens else FinishReason.LENGTH
            self._waiting.append(_EmulatedResponse(request, prompt, min(length, request.max_tokens), finish))
        if self._waiting and len(self._running) < self.slots:
            self._change()

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        gone = set(ids)
        self._events.forget(gone)
        self._waiting = deque(r for r in self._waiting if r.request.id not in gone)
        for response in self._running:
            if response.request.id in gone:
                response.cancelled = True
                self._change()

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: the engine has ended.
        """
        return await self._events.take()

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Count tokens as `version` from the next step on, once all tensors were read.

        Raises:
            WeightsRejected: a tensor does not verify.
            GenerationFailed: the engine has ended.
        """
        for _ in tensors or ():
            pass
        if self._events.failure is not None:
            raise self._events.failure
        done = asyncio.get_running_loop().create_future()
        self._swaps.append(PendingSwap(version, inflight, done))
        self._change()
        await done

    def load(self) -> EngineLoad:
        """How busy it is; `tokens` counts those generated since the start."""
        tokens = self._generated + self._begun() * len(self._running)
        return EngineLoad(len(self._running), len(self._waiting), tokens)

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        end = self._step + self._begun()
        return [
            self._progress_of(response, end)
            for response in self._running
            if not response.cancelled and response.tokens(end) >= least.get(response.request.id, math.inf)
        ]

    async def close(self) -> None:
        """Stop."""
        if self._task is not None and not self._task.done():
            begun = self._begun()
            self._task.cancel()
            await asyncio.wait([self._task])
            self._advance(begun)
        self._events.end(None)

    def _begun(self) -> int:
        """Steps of the running responses that are over and were not accounted for yet."""
        if not self._running or self._task is None or self._task.done():
            return 0
        return min(int(self._steps(asyncio.get_running_loop().time() - self._since)), self._remaining())

    # ------------------------------------------------------------------------------------------ the steps

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._between_steps()
            if not self._running:
                await self._sleep(until=None)
                self._since = loop.time()
                continue
            steps = self._remaining()
            if await self._sleep(until=self._since + self._seconds(steps)):
                # Something changed: it takes effect when the step under way has ended.
                begun = self._steps(loop.time() - self._since)
                steps = min(steps, max(1, math.ceil(begun - 1e-6)))  # one that ends now is not one more
                while await self._sleep(until=self._since + self._seconds(steps)):
                    pass
            self._advance(steps)

    def _between_steps(self) -> None:
        for response in [r for r in self._running if r.cancelled]:
            self._leave(response)
        while self._swaps and (self._swaps[0].inflight != Inflight.KEEP or not self._running):
            self._use(self._swaps.popleft())
        while not self._swaps and self._waiting and len(self._running) < self.slots:
            response = self._waiting.popleft()
            response.first = self._step
            self._context += len(response.prompt) + response.tokens(self._step)
            self._running.append(response)

    def _use(self, swap: PendingSwap) -> None:
        if swap.inflight == Inflight.RESTART:
            for response in list(self._running):
                self._leave(response)
                self._events.put([Stopped(id=response.request.id, reason="Restarted", failure=False)])
        self.version = swap.version
        oldest = min((r.first for r in self._running), default=self._step)
        self._versions.append((self._step, swap.version))
        while len(self._versions) > 1 and self._versions[1][0] <= oldest:
            del self._versions[0]
        swap.succeed()

    def _advance(self, steps: int) -> None:
        """Have done so many steps; responses that end with the last of them are reported."""
        self._since += self._seconds(steps)
        self._step += steps
        self._context += steps * len(self._running)
        self._generated += steps * len(self._running)
        for response in [r for r in self._running if r.end == self._step]:
            self._leave(response)
            if not response.cancelled:
                self._events.put([self._completed(response)])

    def _leave(self, response: _EmulatedResponse) -> None:
        self._running.remove(response)
        self._context -= len(response.prompt) + response.tokens(self._step)

    def _completed(self, response: _EmulatedResponse) -> Completed:
        progress = self._progress_of(response, response.end)
        return Completed(progress.id, progress.tokens, progress.logprobs, progress.versions, response.finish)

    def _progress_of(self, response: _EmulatedResponse, end: int) -> Progress:
        """A response up to step `end`."""
        starts, versions = zip(*self._versions, strict=True)
        steps = np.arange(response.first, end)
        before, length = response.request.inherited_tokens, response.tokens(end)
        progress = Progress(
            id=response.request.id,
            tokens=np.resize(response.prompt, length),
            logprobs=np.full(length, -1.0, np.float32),
            versions=np.empty(length, np.int32),
        )
        progress.versions[before:] = np.array(versions, np.int32)[
            np.searchsorted(starts, steps, side="right") - 1
        ]
        if (inherited := response.request.inherited) is not None:
            progress.tokens[:before] = inherited.tokens
            progress.logprobs[:before] = inherited.logprobs
            progress.versions[:before] = inherited.versions
        return progress

    def _seconds(self, steps: int) -> float:
        """Duration of the next steps of the running responses."""
        first, growth = self._profile()
        return steps * first + growth * steps * (steps - 1) / 2

    def _steps(self, seconds: float) -> float:
        """How many of the next steps fit into so many seconds: the inverse of `_seconds`."""
        first, growth = self._profile()
        if not growth:
            return seconds / first
        half = first - growth / 2
        return (math.sqrt(half**2 + 2 * growth * max(seconds, 0.0)) - half) / growth

    def _remaining(self) -> int:
        """Steps until the next running response ends."""
        return min(r.end for r in self._running) - self._step

    def _profile(self) -> tuple[float, float]:
        """Seconds of the next step, and by how much each further one takes longer."""
        options, running = self._options, len(self._running)
        context = options.step_seconds_per_context_token
        first = options.step_seconds + options.step_seconds_per_slot * running + context * self._context
        return first, context * running

    # ------------------------------------------------------------------------------------------ the loop's time

    def _change(self) -> None:
        self._changed = True
        self._wake.set()

    async def _sleep(self, *, until: float | None) -> bool:
        """Sleep until this time of the loop or a change; whether there was a change."""
        timer = None if until is None else asyncio.get_running_loop().call_at(until, self._wake.set)
        await self._wake.wait()
        if timer is not None:
            timer.cancel()
        self._wake.clear()
        changed, self._changed = self._changed, False
        return changed

    def _ended(self, task: asyncio.Task[None]) -> None:
        failure = self._events.end(None if task.cancelled() else task.exception())
        fail_all(self._swaps, failure)
