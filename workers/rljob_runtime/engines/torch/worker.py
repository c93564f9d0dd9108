"""The compute thread of the engine `Torch`: it admits and ends sequences, decodes, samples, and swaps weights."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rljob_core.errors import WeightsRejected
from rljob_core.messages import EngineProfile
from rljob_core.ports import Completed, EngineEvent, Progress, Request, Stopped
from rljob_core.spec import Inflight
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.events import engine_failed, not_finite, unfit
from rljob_runtime.engines.factory import recompute_choice
from rljob_runtime.engines.profile import StepTimes
from rljob_runtime.engines.random_stream import draw
from rljob_runtime.engines.stops import Decode, Mark, StopTable
from rljob_runtime.engines.torch.batch import Batch
from rljob_runtime.engines.torch.model import SlotModel
from rljob_runtime.engines.torch.options import TorchEngineOptions
from rljob_runtime.engines.torch.rows import QueuedSequence
from rljob_runtime.engines.torch.sampler import sample

#: Called once something is done, with the error that forbade it, if any.
Settle = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate these: tickets and requests."""

    items: Sequence[tuple[int, Request]]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Forget these tickets."""

    tickets: frozenset[int]


@dataclass(frozen=True, slots=True)
class Report:
    """Tell, in the engine's thread, how far those of these tickets have come that have so many tokens at least."""

    least: Mapping[int, int]
    answer: Callable[[Sequence[Progress]], None]


@dataclass(frozen=True, slots=True)
class Swap:
    """Use new weights (None: those that are loaded) as `version`.

    `settle` is called in the engine's thread once they are in use, or with the error that forbids it.
    """

    version: int
    tensors: Mapping[str, Any] | None
    inflight: str
    settle: Settle


@dataclass(frozen=True, slots=True)
class Close:
    """End the thread."""


Command = Submit | Withdraw | Report | Swap | Close


class Worker:
    """Runs one engine's computation in a thread.

    Args:
        path: the model's folder.
        options: the engine's options.
        decode: returns the tokenizer's decoder; called once a request has stop strings.
        deliver: the thread calls it with (ticket, event) pairs.
        started: the thread calls it with None once the model is loaded, or with the error if loading fails.
        ended: the thread calls it when it ends, with the error that ended it or None.

    Attributes:
        version: policy version of the weights in use.
        recompute_cache: as of the port `CacheKeeper`.
        tokens: tokens generated since the start.
        thread: the thread, to be started by the caller.
    """

    def __init__(
        self,
        *,
        path: Path,
        options: TorchEngineOptions,
        decode: Callable[[], Decode],
        deliver: Callable[[list[tuple[int, EngineEvent]]], None],
        started: Settle,
        ended: Settle,
    ) -> None:
        self.version = -1
        self.tokens = 0
        self.recompute_cache = recompute_choice(options.recompute_cache)
        self._path = path
        self._options = options
        self._decoder = decode
        self._deliver = deliver
        self._started = started
        self._ended = ended
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._waiting: deque[QueuedSequence] = deque()
        self._swaps: deque[Swap] = deque()
        self._events: list[tuple[int, EngineEvent]] = []
        self._stale = False  # the cache is of older weights
        self._times = StepTimes()
        self._model: SlotModel
        self._batch = Batch(slots=options.slots)
        self._stops: StopTable
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return self._batch.running

    @property
    def profile(self) -> EngineProfile | None:
        """Measured times of decode steps; any thread may read it, because a single step changes it very little."""
        return self._times.profile

    def post(self, command: Command) -> None:
        """Queue a command, which the thread executes between two tokens."""
        self._commands.put(command)

    def progress(self, least: Mapping[int, int]) -> list[Progress]:
        """Return the partial responses of running requests that have at least the given number of tokens.

        Call it in the thread, or after the thread has ended.

        Args:
            least: the number of response tokens by ticket; other tickets are left out.
        """
        rows = self._batch.rows
        return [
            Progress(sequence.request.id, *rows.response(row))
            for row, sequence in sorted(rows.holder.items())
            if sequence.ticket in least and rows.length(row) >= least[sequence.ticket]
        ]

    def initial(self) -> dict[str, Any]:
        """Return the weights in the model's folder; any thread may call it."""
        return self._model.initial()

    # ------------------------------------------------------------------------------------------ the loop

    def _run(self) -> None:
        try:
            self._start()
        except Exception as error:  # start() raises it
            self._started(error)
            return
        self._started(None)
        try:
            with torch.inference_mode():
                while self._handle_commands():
                    self._advance()
        except Exception as error:  # events() raises it
            self._ended(error)
        else:
            self._ended(None)

    def _start(self) -> None:
        options = self._options
        if options.threads is not None:
            # OpenMP keeps this number per thread that opens parallel regions: it must be set in this one.
            torch.set_num_threads(options.threads)
        device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model = SlotModel(self._path, dtype=options.dtype, device=device, slots=options.slots)
        self._begin()
        self._stops = StopTable(vocabulary=self._model.vocabulary, decode=self._decoder)
        self._longest = min(self._model.context, options.max_length or self._model.context)

    def _handle_commands(self) -> bool:
        """Execute the queued commands; wait for one if there is no other work. Return False when the engine closes."""
        idle = not (self.running or self._waiting or self._swaps)
        while idle or not self._commands.empty():
            idle = False
            match self._commands.get():
                case Submit(items):
                    for ticket, request in items:
                        self._take(ticket, request)
                case Withdraw(tickets):
                    self._waiting = deque(s for s in self._waiting if s.ticket not in tickets)
                    rows = self._batch.rows
                    for row in rows.live:
                        if rows.holder[row].ticket in tickets:
                            rows.release(row)
                case Report(least, answer):
                    answer(self.progress(least))
                case Swap() as swap:
                    self._swaps.append(swap)
                case Close():
                    return False
        return True

    def _advance(self) -> None:
        """Swap weights and rebalance if needed, then generate one token for every running sequence."""
        while self._swaps and (self._swaps[0].inflight != Inflight.KEEP or not self.running):
            self._swap(self._swaps.popleft())
        try:
            if self._stale:
                self._batch.recompute(self._model)
                self._stale = False
            if self._batch.is_due(0 if self._swaps else len(self._waiting)):
                self._admit()
            else:
                self._batch.close_gaps(self._model)
            if self.running:
                self._step()
        except Exception as error:  # an engine outlives one batch; each of its sequences says why
            self._stop_all(partial(engine_failed, error=error))
        self._flush()

    def _flush(self) -> None:
        if self._events:
            self._deliver(self._events)
            self._events = []

    # ------------------------------------------------------------------------------------------ sequences

    def _take(self, ticket: int, request: Request) -> None:
        tokens = np.asarray(request.tokens, np.int64)
        stopped = unfit(request, longest=self._longest, vocabulary=self._model.vocabulary)
        if request.inherited is not None:
            tokens = np.concatenate([tokens, np.asarray(request.inherited.tokens, np.int64)])
        if stopped is None:
            try:
                ending = self._stops.ending(request.stop_tokens, request.stop)
            except Exception as error:  # the tokenizer's
                stopped = engine_failed(request.id, error)
            else:
                self._waiting.append(QueuedSequence(ticket, request, tokens, ending))
                return
        self._events.append((ticket, stopped))

    def _step(self) -> None:
        rows = self._batch.rows
        began, batch, context = time.perf_counter(), self.running, rows.context
        used = slice(0, rows.used)
        logits = self._model.decode(
            rows.tokens[used, rows.column], start=rows.start[used], low=rows.low, column=rows.column
        )
        tokens, logprobs = sample(
            logits,
            uniform=draw(rows.random[used]),
            temperature=rows.temperature[used],
            top_p=rows.top_p[used],
        )
        rows.append(tokens, logprobs, self.version)
        self.tokens += self.running
        marks = self._stops.marks[rows.ending[used], tokens]
        broken = ~np.isfinite(logprobs)
        for row in np.flatnonzero(
            (marks != Mark.NOTHING) | broken | (rows.last[used] <= rows.column)
        ).tolist():
            if row in rows.holder:
                self._look(row, Mark(marks[row]), broken=bool(broken[row]))
        self._times.observe(time.perf_counter() - began, batch=batch, context=context)

    def _look(self, row: int, mark: Mark, *, broken: bool) -> None:
        """End a row's sequence if its newest token ends it."""
        rows = self._batch.rows
        sequence = rows.holder[row]
        name = sequence.request.id
        if broken:
            rows.release(row)
            self._model.cache.clear([row])
            self._events.append((sequence.ticket, not_finite(name, self.version)))
            return
        stopped = mark is Mark.STOP or (
            mark is Mark.MAYBE
            and self._stops.completed(sequence.ending, rows.tokens[row, rows.first[row] : rows.column + 1])
        )
        if stopped or rows.last[row] <= rows.column:
            tokens, logprobs, versions = rows.response(row)
            finish = FinishReason.STOP if stopped else FinishReason.LENGTH
            self._events.append((sequence.ticket, Completed(name, tokens, logprobs, versions, finish)))
            rows.release(row)

    def _stop_all(self, stopped: Callable[[str], Stopped]) -> None:
        """Stop all running sequences and empty the cache."""
        for sequence in [*self._batch.rows.holder.values(), *self._batch.arriving]:
            self._events.append((sequence.ticket, stopped(sequence.request.id)))
        self._begin()

    def _begin(self) -> None:
        self._stale = False
        self._batch.reset(self._model)

    # ------------------------------------------------------------------------------------------ between tokens

    def _admit(self) -> None:
        """Rebalance the batch, with as many waiting sequences as there are rows for; none while a swap waits."""
        free = 0 if self._swaps else self._batch.free
        arrivals = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        self._batch.rebalance(self._model, arrivals)

    def _swap(self, swap: Swap) -> None:
        """Replace the weights. An error while they are applied leaves a mixture of versions, so it ends the thread."""
        if swap.tensors is not None:
            try:
                self._model.check(swap.tensors)
            except WeightsRejected as error:
                swap.settle(error)
                return
        if swap.inflight == Inflight.RESTART:
            self._stop_all(lambda name: Stopped(name, "Restarted", failure=False))
            self._flush()
        if swap.tensors is not None:
            self._model.apply(swap.tensors)
            self._stale = self.recompute_cache is not False and self.running > 0
        self.version = swap.version
        swap.settle(None)
