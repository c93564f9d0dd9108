"""An asyncio event loop with virtual time, which jumps to the next timer when no task can run.

Runs are deterministic: there are no threads, the loop never waits for sockets, `time.time` follows the loop's clock
(what messages say of the time also makes them longer or shorter), and sets of tasks (for instance those of a
`TaskGroup`) iterate in the order in which the tasks were created. So the same seed gives the same run within one
process; between processes, the order of sets of strings may differ.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")

BEGAN = 1_700_000_000.0
"""Seconds since 1970 at which virtual time begins."""


class Deadlock(Exception):
    """All tasks wait, and no timer is scheduled that could resume one."""


class Livelock(Exception):
    """Tasks run, but virtual time does not advance."""


class OutOfTime(Exception):
    """The limit of virtual time is reached."""


class _Clock(selectors.SelectSelector):
    """A selector that does not wait: it advances the virtual time by the timeout instead."""

    def __init__(self, limit: float, turns: int) -> None:
        super().__init__()
        self.now = 0.0
        self._limit = limit
        self._turns = self._turns_left = turns

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock(f"at {self.now:.3f} s nothing is scheduled that could wake:\n{_waiting()}")
        if timeout <= 0:
            self._turns_left -= 1
            if self._turns_left < 0:
                self._turns_left = self._turns
                raise Livelock(f"time stands still at {self.now:.3f} s:\n{_waiting()}")
            return []
        self._turns_left = self._turns
        self.now += timeout
        if self.now > self._limit:
            limit, self._limit = self._limit, float("inf")  # what cleans up may take its time
            raise OutOfTime(f"{limit} s are over:\n{_waiting()}")
        return []


def _waiting() -> str:
    """Tasks that are not done, and where they wait."""
    tasks = sorted(asyncio.all_tasks(asyncio.get_running_loop()), key=hash)
    lines = []
    for task in tasks:
        where = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in _frames(task.get_coro())]
        lines.append(f"  {task.get_name()}: {' > '.join(where)}")
    return "\n".join(lines)


def _frames(coroutine: Any) -> list[Any]:
    """From a task's coroutine down to what it awaits."""
    frames = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            frames.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return frames


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop under virtual time, which begins at 0.

    Args:
        limit: seconds of virtual time that may pass.
        turns: of the loop that may be made at one time.
    """

    def __init__(self, *, limit: float = float("inf"), turns: int = 1_000_000) -> None:
        self._clock = _Clock(limit, turns)
        super().__init__(self._clock)
        self._tasks_made = 0
        self.set_task_factory(self._make_task)

    def _make_task(self, _: object, coro: Any, **options: Any) -> asyncio.Task[Any]:
        self._tasks_made += 1
        return _Task(coro, number=self._tasks_made, loop=self, **options)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._clock.now

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call back soon, as `call_soon` does: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call it here and now; the future is done. `asyncio.to_thread` comes here, too."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T], *, limit: float = float("inf"), turns: int = 1_000_000) -> T:
    """The result of a coroutine under virtual time; what it left running is cancelled.

    Args:
        limit: seconds of virtual time that it may take.
        turns: of the loop that it may take at one time.

    Raises:
        Deadlock: nothing that is scheduled could wake the tasks that wait; it names them.
        Livelock: time does not pass.
        OutOfTime: it takes longer.
    """
    # Collecting garbage closes forgotten generators, at moments that depend on what ran before.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit=limit, turns=turns)) as runner:
            loop = runner.get_loop()  # a thread of a library may keep this clock, and outlive the runner
            with patch("time.time", lambda: BEGAN + loop.time()):
                return runner.run(main)
    finally:
        if collecting:
            gc.enable()
