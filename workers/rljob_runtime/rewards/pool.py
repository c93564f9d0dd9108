"""Scores answers in other processes: fast when functions are cheap, safe when they hang, raise or crash.

Answers wait in a queue; each free process takes a fair share of the queue as one chunk, so that cheap functions pay for
one trip per chunk, while a chunk of expensive ones returns after a time slice with what is done. When a process dies,
shared memory says which answer it was scoring. That answer fails if its time limit ended the process, and is tried once
more, alone, if something else did, which need not be the answer's fault; the rest of the chunk returns to the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import forkserver
from typing import Any

from pebble import ProcessExpired, ProcessPool

from rljob_core.config import JobConfig
from rljob_core.errors import RewardFailed, SpecError
from rljob_runtime.rewards import process as reward_worker
from rljob_runtime.rewards.process import ScoringJob, ScoringOutcome

_CHUNK = 256
#: Beyond all limits of a chunk, for functions that change the process's timer.
_GRACE = 5.0
#: Pools that may break in a row before the role gives up.
_MAX_BREAKS = 5


@dataclass(slots=True)
class _WaitingAnswer:
    job: ScoringJob
    outcome: asyncio.Future[ScoringOutcome]
    crashes: int = 0


@dataclass(slots=True)
class _AnswerQueue:
    """Waiting answers: suspects, which are scored alone, and the others."""

    suspects: deque[_WaitingAnswer] = field(default_factory=deque)
    others: deque[_WaitingAnswer] = field(default_factory=deque)

    def take(self, share: int) -> list[_WaitingAnswer]:
        """The next chunk; empty if no answer waits."""
        if self.suspects:
            return [self.suspects.popleft()]
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
        config: the job's.
        workers: processes; by default one per CPU, four at most.
    """

    def __init__(self, config: JobConfig, *, workers: int | None = None) -> None:
        self._config = config
        self._workers = workers or min(4, len(os.sched_getaffinity(0)))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_preload(config))
        self._progress: Any = self._context.RawArray("i", self._workers)
        self._free = list(range(self._workers))
        limits = len(config.spec.reward.functions) * config.spec.reward.timeout_seconds
        self._backstop = reward_worker.SLICE + limits + _GRACE
        self._queue = _AnswerQueue()
        self._running = set[asyncio.Task[None]]()
        self._breaks = 0
        self._pool = self._new_pool()

    async def start(self) -> None:
        """Start the processes.

        Raises:
            SpecError: data or functions are not what the spec needs.
            RewardFailed: the processes die while they load.
        """
        # From this thread, which lives as long as the role: the server ends with the thread that started it.
        forkserver.ensure_running()
        while True:
            try:
                # Off the loop: it waits for the server's imports.
                future = await asyncio.to_thread(self._pool.schedule, reward_worker.check)
                wrong = await asyncio.wrap_future(future)
                break
            except (BrokenProcessPool, RuntimeError, ProcessExpired) as error:
                await self._replace(self._pool, error)
        if wrong is not None:
            raise SpecError(*wrong)

    async def score(self, job: ScoringJob) -> ScoringOutcome:
        """The outcome of one answer; errors of the functions are outcomes too.

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
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.to_thread(_end, self._pool)

    def _dispatch(self) -> None:
        while self._free and (chunk := self._queue.take(self._workers)):
            task = asyncio.create_task(self._run(self._free.pop(), chunk))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, slot: int, chunk: list[_WaitingAnswer]) -> None:
        pool = self._pool
        self._progress[slot] = 0
        jobs = [entry.job for entry in chunk]
        try:
            future = pool.schedule(reward_worker.score_chunk, args=(slot, jobs), timeout=self._backstop)
            outcomes: list[ScoringOutcome] = await asyncio.wrap_future(future)
        except ProcessExpired as error:
            self._died(chunk, self._progress[slot], error.exitcode)
        except TimeoutError:
            self._died(chunk, self._progress[slot], -signal.SIGALRM)
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
            self._free.append(slot)
        self._dispatch()

    def _died(self, chunk: list[_WaitingAnswer], position: int, code: int | None) -> None:
        """A process ended over a chunk while it was at `position`."""
        culprit = chunk[position]
        self._queue.put_back(chunk[:position] + chunk[position + 1 :])
        if code == -signal.SIGALRM:
            limit = self._config.spec.reward.timeout_seconds
            _settle(culprit, ScoringOutcome(error=f"RewardTimeout: longer than {limit:g} s"))
        elif culprit.crashes == 0:
            culprit.crashes += 1
            self._queue.suspects.append(culprit)
        else:
            _settle(culprit, ScoringOutcome(error=f"RewardCrashed: the process ended {_manner(code)}"))

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
            for entry in [*self._queue.suspects, *self._queue.others]:
                if not entry.outcome.done():
                    entry.outcome.set_exception(failure)
            self._queue = _AnswerQueue()
            raise failure from error

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._workers,
            initializer=reward_worker.load,
            initargs=(self._config.model_dump_json(by_alias=True), self._progress),
            context=self._context,
        )


def _preload(config: JobConfig) -> list[str]:
    """What the fork server imports: modules of the pool's processes that start no threads (`datasets` does)."""
    sources = {config.spec.data.source}
    if config.spec.evaluation is not None:
        sources.add(config.spec.evaluation.data.source or config.spec.data.source)
    modules = {
        "rljob_runtime.rewards.forkserver": True,
        "rljob_runtime.rewards.process": True,
        "rljob_runtime.data.gym": "reasoning-gym" in sources,
        "math_verify": "math_verify" in config.spec.reward.functions,
    }
    return [module for module, wanted in modules.items() if wanted]


def _settle(entry: _WaitingAnswer, outcome: ScoringOutcome) -> None:
    if not entry.outcome.done():  # its caller may have given up
        entry.outcome.set_result(outcome)


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


def _manner(code: int | None) -> str:
    """An exit code in words."""
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with code {code}"
