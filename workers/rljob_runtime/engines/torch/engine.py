"""The engine `Torch` generates with a Hugging Face causal model from a local folder, by continuous batching.

One thread computes (`worker`), and the event loop exchanges commands and events with it. Sequences enter and leave a
running batch within a few tokens; weights are swapped between two tokens, and every token carries the version and the
log-probability of the weights that produced it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rljob_core.errors import GenerationFailed
from rljob_core.ports import EngineEvent, EngineLoad, Progress, Request
from rljob_runtime.engines.events import EngineEvents
from rljob_runtime.engines.stops import Decode, decoder
from rljob_runtime.engines.torch.options import TorchEngineOptions
from rljob_runtime.engines.torch.worker import Close, Report, Submit, Swap, Withdraw, Worker


class TorchEngine:
    """The port `Engine`; see `TorchEngineOptions` for its options.

    A request whose id is still being generated takes that one's place. For temperature 0 log-probabilities are
    those of the untempered distribution.

    Args:
        path: the model's folder.
        options: of the engine.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.
    """

    def __init__(self, path: Path, *, options: TorchEngineOptions, decode: Decode | None = None) -> None:
        self.slots = options.slots
        self.version = -1
        self._worker = Worker(
            path=path,
            options=options,
            decode=partial(decoder, decode, path),
            deliver=lambda events: self._call(self._receive, events),
            started=lambda error: self._call(self._settle, self._started, error),
            ended=lambda error: self._call(self._end, error),
        )
        self._loop: asyncio.AbstractEventLoop
        self._started: asyncio.Future[None]
        self._pending: set[asyncio.Future[None]] = set()
        self._reports: set[asyncio.Future[Sequence[Progress]]] = set()
        self._numbers = count()
        self._tickets: dict[str, int] = {}
        self._events = EngineEvents()
        self._untouched = True

    async def start(self) -> None:
        """Load the model.

        Raises:
            SpecError: its folder holds no causal model that this engine serves.
        """
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._worker.thread.start()
        await self._started

    @property
    def recompute_cache(self) -> bool | None:
        """Whether swaps recompute the caches of what runs; see the port `CacheKeeper`."""
        return self._worker.recompute_cache

    @recompute_cache.setter
    def recompute_cache(self, again: bool | None) -> None:
        self._worker.recompute_cache = again

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""
        self.cancel([request.id for request in requests])
        items = [(next(self._numbers), request) for request in requests]
        self._tickets.update((request.id, ticket) for ticket, request in items)
        self._worker.post(Submit(items))

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""
        gone = frozenset(self._tickets.pop(name) for name in ids if name in self._tickets)
        if gone:
            self._worker.post(Withdraw(gone))
        self._events.forget(set(ids))

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one.

        Raises:
            GenerationFailed: the engine's thread has ended.
        """
        return await self._events.take()

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on (`None`: the initial model's).

        Everything is read, and so verified, before anything is replaced; unless `tensors` is a sequence, that
        happens in a thread, and generation continues meanwhile.

        Raises:
            WeightsRejected: the tensors do not verify or are not this model's; the old ones stay in use.
            GenerationFailed: the engine's thread has ended.
        """
        weights: dict[str, Any] | None = None
        if isinstance(tensors, Sequence):
            weights = dict(tensors)
        elif tensors is not None:
            weights = await asyncio.to_thread(dict, tensors)
        elif not self._untouched:
            weights = await asyncio.to_thread(self._worker.initial)
        self._untouched = False
        if self._events.failure is not None:
            raise self._events.failure
        done: asyncio.Future[None] = self._loop.create_future()
        self._pending.add(done)
        done.add_done_callback(self._pending.discard)

        def settle(error: BaseException | None) -> None:
            self._call(self._swapped, done, version, error)

        self._worker.post(Swap(version=version, tensors=weights, inflight=inflight, settle=settle))
        await done

    def load(self) -> EngineLoad:
        """How busy it is; `tokens` counts those generated since the start."""
        running = self._worker.running
        waiting = max(0, len(self._tickets) - running)
        return EngineLoad(running, waiting, self._worker.tokens, self._worker.profile)

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that have so many tokens at least."""
        asked = {self._tickets[name]: tokens for name, tokens in least.items() if name in self._tickets}
        if not self._worker.thread.is_alive():
            return self._worker.progress(asked)
        done: asyncio.Future[Sequence[Progress]] = self._loop.create_future()
        self._reports.add(done)
        done.add_done_callback(self._reports.discard)
        self._worker.post(Report(asked, lambda found: self._call(self._deliver_progress, done, found)))
        try:
            return await done
        except GenerationFailed:  # its thread ended before it came to that
            return self._worker.progress(asked)

    async def close(self) -> None:
        """Stop computing and free the memory."""
        if self._worker.thread.is_alive():
            self._worker.post(Close())
            await asyncio.to_thread(self._worker.thread.join)
        self._end(None)

    # ------------------------------------------------------------------------------------------ from the thread

    def _call(self, function: Callable[..., None], *values: Any) -> None:
        # The loop may be closed already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *values)

    def _receive(self, events: Sequence[tuple[int, EngineEvent]]) -> None:
        current = [event for ticket, event in events if self._tickets.get(event.id) == ticket]
        for event in current:
            del self._tickets[event.id]
        self._events.put(current)

    def _swapped(self, done: asyncio.Future[None], version: int, error: BaseException | None) -> None:
        if error is None:
            self.version = version
        self._settle(done, error)

    @staticmethod
    def _deliver_progress(done: asyncio.Future[Sequence[Progress]], found: Sequence[Progress]) -> None:
        if not done.done():
            done.set_result(found)

    def _settle(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _end(self, error: BaseException | None) -> None:
        failure = self._events.end(error)
        for future in list(self._pending):
            self._settle(future, failure)
        for report in list(self._reports):
            if not report.done():
                report.set_exception(failure)
