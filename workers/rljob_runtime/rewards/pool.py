"""Scores answers in other processes: fast when functions are cheap, safe when they hang, raise or crash.

Answers wait in a queue; each free process takes a fair share of the queue as one chunk, so that cheap functions pay for
one trip per chunk, while a chunk of expensive ones returns after a time slice with what is done. Shared memory says
which answer each process is scoring, and since when: the pool kills a process whose function runs too long, and that
answer fails. If something else ends a process, which need not be the answer's fault, the answer is tried once more,
alone. In either case the rest of the chunk returns to the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import forkserver
from typing import Any

import psutil
from pebble import ProcessExpired, ProcessPool

from rljob_core.errors import RewardFailed, SpecError
from rljob_core.failures import Reason
from rljob_core.words import KILLED
from rljob_runtime.process import child_processes
from rljob_runtime.rewards import process as reward_worker
from rljob_runtime.rewards.messages import GroupJob, Scores, ScoringJob, ScoringSetup
from rljob_runtime.rewards.process import CallInProgress
from rljob_runtime.rewards.trial import FIELD, LOAD_SECONDS, load_on_trial, names_user_code, took_too_long

_CHUNK = 256
#: Seconds between two looks at how long functions have been running.
_LOOK = 0.1
#: Seconds after which a process that is gone has ended its chunk: the pool says so of any that did not exit with 0.
_SAID = 1.0
#: Seconds of a chunk beyond all limits of its functions, for the data's own code.
_GRACE = 5.0
#: Seconds for which a free process may leave a chunk alone. A process that was killed while it took one holds a lock.
_UNTAKEN = 60.0
#: That a process may take to load what another one has loaded, in durations of that one's start.
_UNTAKEN_STARTS = 3
#: Seconds after which functions that have not loaded are loaded on trial, too.
_SILENT_SECONDS = 60.0
#: Pools that may break in a row before the role gives up.
_MAX_BREAKS = 5


@dataclass(slots=True)
class _WaitingAnswer:
    job: ScoringJob | GroupJob
    outcome: asyncio.Future[Scores]
    crashes: int = 0


@dataclass(slots=True)
class _AnswerQueue:
    """Waiting answers: quarantined ones, which are scored alone, and the others."""

    quarantined: deque[_WaitingAnswer] = field(default_factory=deque)
    others: deque[_WaitingAnswer] = field(default_factory=deque)

    def take(self, share: int) -> list[_WaitingAnswer]:
        """The next chunk; empty if no answer waits."""
        if self.quarantined:
            return [self.quarantined.popleft()]
        number = min(_CHUNK, math.ceil(len(self.others) / share))
        return [self.others.popleft() for _ in range(number)]

    def put_back(self, entries: Sequence[_WaitingAnswer]) -> None:
        """Return answers to the head of the queue, in order."""
        self.others.extendleft(reversed(entries))


class RewardPool:
    """A pool of reward processes for one job.

    Processes are forked from a server that has imported the libraries once and does nothing else: a replacement
    is there in milliseconds, and memory is shared.

    Args:
        setup: what the job needs. Without `setup.workers`, there is one process per CPU, four at most.
    """

    def __init__(self, setup: ScoringSetup) -> None:
        self._setup = setup
        self._workers = setup.workers or min(4, len(os.sched_getaffinity(0)))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_preloaded(setup))
        self._calls: Any = self._context.RawArray(CallInProgress, self._workers)
        self._free = list(range(self._workers))
        self._limit = setup.timeout_seconds
        self._chunk_limit = reward_worker.SLICE + len(setup.functions) * self._limit + _GRACE
        self._overdue = dict[int, float]()  # by slot: beginning of the call for which its process was killed
        self._ended = dict[
            int, asyncio.Event
        ]()  # by slot: its process has ended, and the pool does not say so
        self._gone = dict[int, float]()  # by slot: since when its process is
        self._clock: asyncio.Task[None] | None = None
        self._queue = _AnswerQueue()
        self._running = set[asyncio.Task[None]]()
        self._breaks = 0
        self._untaken = _UNTAKEN
        self._pool = self._new_pool()

    async def start(self) -> None:
        """Start the processes.

        Raises:
            SpecError: data or functions are not what the spec needs, end what loads them, or do not load in time.
            RewardFailed: the processes die while they load, for no reason that the functions have.
        """
        # From this thread, which lives as long as the role: the server ends with the thread that started it.
        forkserver.ensure_running()
        began = time.monotonic()
        while True:
            try:
                # Off the loop: it waits for the server's imports.
                future = await asyncio.to_thread(self._pool.schedule, reward_worker.check)
                async with asyncio.timeout(LOAD_SECONDS) as limit:
                    wrong = await self._loaded(asyncio.wrap_future(future))
                break
            except (BrokenProcessPool, RuntimeError, ProcessExpired) as error:
                await self._find_crash()
                await self._replace(self._pool, error)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                functions = ", ".join(names_user_code(self._setup) or self._setup.functions)
                raise SpecError(FIELD, took_too_long(functions, LOAD_SECONDS)) from error
        if wrong is not None:
            raise SpecError(*wrong)
        self._untaken = max(_UNTAKEN, _UNTAKEN_STARTS * (time.monotonic() - began))
        self._clock = asyncio.create_task(self._kill_overdue())

    async def _loaded(self, loading: asyncio.Future[Any]) -> Any:
        """Wait for the functions; while they are silent, look whether they end what loads them.

        Raises:
            BrokenProcessPool: they load elsewhere, and not here: a process that ended while it held a lock of the
                pool's leaves the others waiting for nothing.
        """
        try:
            done, _ = await asyncio.wait({loading}, timeout=_SILENT_SECONDS)
            if not done:
                began = time.monotonic()
                await self._find_crash()
                patience = _SILENT_SECONDS + _UNTAKEN_STARTS * (time.monotonic() - began)
                done, _ = await asyncio.wait({loading}, timeout=patience)
                if not done:
                    raise BrokenProcessPool(
                        f"it has not loaded the functions {patience:.0f} s after another had"
                    )
            return await loading
        finally:
            loading.cancel()

    async def _find_crash(self) -> None:
        """Load the functions once more, where it is seen how the process ends that loads them.

        Raises:
            SpecError: it ends again. Memory may have been short, so that SIGKILL counts only at last.
        """
        trial = await asyncio.to_thread(load_on_trial, self._setup)
        if trial.error is not None and (trial.code != KILLED or self._breaks >= _MAX_BREAKS):
            raise trial.error

    async def score(self, job: ScoringJob | GroupJob) -> Scores:
        """The scores of one answer, or of one group; errors of the functions are outcomes too.

        Raises:
            RewardFailed: no process of the pool stays alive.
        """
        entry = _WaitingAnswer(job, asyncio.get_running_loop().create_future())
        self._queue.others.append(entry)
        # After this turn of the loop, so that answers that come together are scored together.
        asyncio.get_running_loop().call_soon(self._dispatch)
        return await entry.outcome

    async def close(self) -> None:
        """End the processes at once."""
        tasks = [*self._running, *([self._clock] if self._clock is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(_end, self._pool)

    def _dispatch(self) -> None:
        while self._free and (chunk := self._queue.take(self._workers)):
            task = asyncio.create_task(self._run(self._free.pop(), chunk))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, slot: int, chunk: list[_WaitingAnswer]) -> None:
        pool, call = self._pool, self._calls[slot]
        call.process, call.answer, call.began = 0, 0, 0.0
        jobs = [entry.job for entry in chunk]
        silent_end = self._ended[slot] = asyncio.Event()
        ended = asyncio.create_task(silent_end.wait())
        try:
            future = pool.schedule(reward_worker.score_chunk, args=(slot, jobs), timeout=self._chunk_limit)
            scored = asyncio.wrap_future(future)
            waited = {scored, ended}
            done, _ = await asyncio.wait(waited, timeout=self._untaken, return_when=asyncio.FIRST_COMPLETED)
            if not done and not future.running():
                raise BrokenProcessPool(f"no process took an answer for {self._untaken:.0f} s")
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not scored.done():
                scored.cancel()
                raise ProcessExpired("it ended over an answer", code=0)
            outcomes: list[Scores] = await scored
        except ProcessExpired as error:
            self._died(slot, chunk, error.exitcode)
        except TimeoutError:
            # It has ended, and nobody said so: the fork server is gone, too.
            if slot in self._overdue or not psutil.pid_exists(call.process):
                self._died(slot, chunk, None)
            else:
                limit = f"{self._chunk_limit:g} s"
                self._fail(chunk, call.answer, Reason.REWARD_TIMEOUT, f"its item took longer than {limit}")
        except Exception as error:  # a broken pool, or a process that cannot load what it needs
            self._queue.put_back(chunk)
            # If the pool broke too often, the waiting callers already have the error.
            with contextlib.suppress(RewardFailed):
                await self._replace(pool, error)
        else:
            self._breaks = 0
            for entry, outcome in zip(chunk, outcomes, strict=False):
                _settle(entry, outcome)
            self._queue.put_back(chunk[len(outcomes) :])
        finally:
            ended.cancel()
            call.process, call.began = 0, 0.0
            for known in (self._overdue, self._ended, self._gone):
                known.pop(slot, None)
            self._free.append(slot)
        self._dispatch()

    async def _kill_overdue(self) -> None:
        """Kill processes whose functions run too long, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            for slot, call in enumerate(self._calls):
                began, process = call.began, call.process
                self._look_for(slot, process, now)
                if not began or now - began <= self._limit or self._overdue.get(slot) == began:
                    continue
                # What has ended by itself, on a machine so busy that the pool does not know yet, was not slow.
                if child_processes.kill(process):
                    self._overdue[slot] = began

    def _look_for(self, slot: int, process: int, now: float) -> None:
        """Note the end of a slot's process of which the pool says nothing, as of one that exits with 0."""
        if not process or slot not in self._ended or psutil.pid_exists(process):
            self._gone.pop(slot, None)
        elif now - self._gone.setdefault(slot, now) > _SAID:
            self._ended[slot].set()

    def _died(self, slot: int, chunk: list[_WaitingAnswer], code: int | None) -> None:
        """A process ended over a chunk."""
        call, overdue = self._calls[slot], self._overdue.get(slot)
        if overdue == call.began:
            name = self._setup.functions[call.function]
            detail = f"{name} ran longer than {self._limit:g} s"
            self._fail(chunk, call.answer, Reason.REWARD_TIMEOUT, detail)
            return
        if overdue is not None:  # the slow call had ended when it was killed: what came next did nothing
            self._queue.put_back(chunk)
            return
        crashed = chunk[call.answer]
        if crashed.crashes:
            name = self._setup.functions[call.function]
            detail = f"{name} ended its process: {child_processes.end_in_words(code)}"
            self._fail(chunk, call.answer, Reason.REWARD_CRASHED, detail)
            return
        crashed.crashes += 1
        self._queue.quarantined.append(crashed)
        self._queue.put_back(chunk[: call.answer] + chunk[call.answer + 1 :])

    def _fail(self, chunk: list[_WaitingAnswer], position: int, reason: Reason, detail: str) -> None:
        """One answer of a chunk fails; the others return to the queue."""
        _settle(chunk[position], Scores.failed(reason, detail))
        self._queue.put_back(chunk[:position] + chunk[position + 1 :])

    async def _replace(self, broken: ProcessPool, error: Exception) -> None:
        """Another pool instead of one that broke (an idle process died), unless somebody has done so.

        Raises:
            RewardFailed: it happens again and again.
        """
        if self._pool is not broken:
            return
        self._breaks += 1
        self._pool = self._new_pool()
        await asyncio.to_thread(_end, broken)
        if self._breaks > _MAX_BREAKS:
            failure = RewardFailed(f"reward processes die before they score anything: {error}")
            for entry in [*self._queue.quarantined, *self._queue.others]:
                if not entry.outcome.done():
                    entry.outcome.set_exception(failure)
            self._queue = _AnswerQueue()
            raise failure from error

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._workers,
            initializer=reward_worker.load,
            initargs=(self._setup, self._calls),
            context=self._context,
        )


def _settle(entry: _WaitingAnswer, outcome: Scores) -> None:
    if not entry.outcome.done():  # its caller may have given up
        entry.outcome.set_result(outcome)


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


def _preloaded(setup: ScoringSetup) -> list[str]:
    """What the fork server imports: modules of the pool's processes, before any of them imports the job's functions."""
    generated = (items.generated for items in (setup.training, *setup.held_out))
    modules = {
        "rljob_runtime.process.fork_with_parent": True,
        "rljob_runtime.rewards.process": True,
        "rljob_runtime.data.gym": any(generated),
        "math_verify": "math_verify" in setup.functions,
    }
    return [module for module, wanted in modules.items() if wanted]
