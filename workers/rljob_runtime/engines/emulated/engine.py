"""The engine `Emulated` sleeps by a profile instead of computing, to benchmark everything around an engine.

The engine sleeps until the next response ends, the KV cache overflows or something changes, never once per token. It
keeps times against the event loop's clock: a step's end follows from the previous one's, however late the loop was, so
that nothing drifts, and an event loop with virtual time works too.

Which responses run and how long their steps take is `rljob_core.emulation`'s to say.

A response's tokens repeat the prompt's (they are in every vocabulary) with log-probability −1.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rljob_core.messages import EngineProfile
from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.spec import Inflight
from rljob_runtime.engines.emulated.batch import EmulatedBatch, EmulatedResponse
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.engines.events import EngineEvents, nothing_to_generate
from rljob_runtime.engines.factory import recompute_choice
from rljob_runtime.engines.pending_swap import PendingSwap, fail_all


class EmulatedEngine:
    """The port `Engine`; see `EmulatedEngineOptions` for its options.

    Sequences join and leave, and weights are swapped, at the end of the step that is under way. A request whose id
    is still being generated takes that one's place.
    """

    def __init__(self, options: EmulatedEngineOptions) -> None:
        self.slots = options.slots
        self.version = -1
        self.recompute_cache = recompute_choice(options.recompute_cache)
        self._options = options
        self._batch = EmulatedBatch(options)
        self._swaps: deque[PendingSwap] = deque()
        self._swap_seconds = options.swap_seconds * options.time_scale
        self._events = EngineEvents()
        self._wake = asyncio.Event()
        self._changed = False
        self._since = 0.0  # loop time at which the last step ended, or will end if the engine stands still
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to run."""
        self._since = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        self.cancel([request.id for request in requests])
        for request in requests:
            if (nothing := nothing_to_generate(request)) is not None:
                self._events.put([nothing])
                continue
            self._batch.add(EmulatedResponse.of(request))
        if self._batch.waiting and len(self._batch.running) < self.slots:
            self._change()

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        gone = set(ids)
        self._events.forget(gone)
        if self._batch.cancel(gone):
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
        batch, begun = self._batch, self._begun()
        tokens = begun * len(batch.running)
        return EngineLoad(
            running=len(batch.running),
            waiting=len(batch.waiting),
            tokens=batch.generated + tokens,
            profile=self._reported(batch.step + begun),
            context=batch.context + tokens,
            kv_tokens=self._options.kv_tokens,
        )

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        return self._batch.progress(least, begun=self._begun())

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
        if not self._batch.running or self._task is None or self._task.done():
            return 0
        since = asyncio.get_running_loop().time() - self._since
        return min(int(self._batch.durations().steps(since)), self._batch.remaining())

    def _reported(self, steps: int) -> EngineProfile:
        """The profile as the engine reports it after so many steps."""
        true, error = self._batch.profile, self._options.profile_error
        return EngineProfile(
            seconds=error * true.seconds,
            seconds_per_slot=error * true.seconds_per_slot,
            seconds_per_context_token=error * true.seconds_per_context_token,
            steps=steps,
        )

    # ------------------------------------------------------------------------------------------ the steps

    async def _run(self) -> None:
        loop, batch = asyncio.get_running_loop(), self._batch
        while True:
            await self._between_steps()
            if not batch.running:
                await self._sleep(until=None)
                self._since = loop.time()
                continue
            steps, durations = batch.remaining(), batch.durations()
            if await self._sleep(until=self._since + durations.seconds(steps)):
                # Something changed: it takes effect when the step under way has ended.
                begun = durations.steps(loop.time() - self._since)
                steps = min(steps, max(1, math.ceil(begun - 1e-6)))  # one that ends now is not one more
                while await self._sleep(until=self._since + durations.seconds(steps)):
                    pass
            self._advance(steps)

    async def _between_steps(self) -> None:
        self._batch.clean()
        while self._swaps and (self._swaps[0].inflight != Inflight.KEEP or not self._batch.has_begun):
            if self._swap_seconds:
                await self._stand_still()
            self._use(self._swaps.popleft())
        self._batch.admit(preempted_only=bool(self._swaps))

    async def _stand_still(self) -> None:
        """Make no step for the time that a swap takes; requests that are cancelled meanwhile leave."""
        self._since += self._swap_seconds
        while await self._sleep(until=self._since):
            pass
        self._batch.clean()

    def _use(self, swap: PendingSwap) -> None:
        if swap.inflight == Inflight.RESTART:
            for response in self._batch.stop():
                self._events.put([Stopped(id=response.id, reason="Restarted", failure=False)])
        self.version = swap.version
        self._batch.use(swap.version, recompute=self.recompute_cache is not False)
        swap.succeed()

    def _advance(self, steps: int) -> None:
        """Have done so many steps; responses that end with the last of them are reported."""
        self._since += self._batch.durations().seconds(steps)
        for response in self._batch.advance(steps):
            if not response.cancelled:
                self._events.put([self._completed(response)])

    def _completed(self, response: EmulatedResponse) -> Completed:
        return self._batch.completed(response)

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
