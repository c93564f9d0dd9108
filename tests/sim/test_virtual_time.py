"""The event loop with virtual time: its clock, the order of calls, and how it detects deadlocks and livelocks."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from virtual_time import Deadlock, Livelock, OutOfTime, run

DAY = 86_400.0


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        begun = now()
        await asyncio.sleep(0.5)
        half = now()
        await asyncio.gather(*(asyncio.sleep(10 * DAY * part) for part in range(4)))
        return [begun, half, now()]

    assert run(main()) == pytest.approx([0.0, 0.5, 30 * DAY + 0.5])


def test_timeouts_and_what_they_guard_keep_their_order() -> None:
    async def main() -> list[object]:
        seen: list[object] = []

        async def tick(every: float, times: int) -> None:
            for _ in range(times):
                await asyncio.sleep(every)
                seen.append((every, now()))

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.gather(tick(1.0, 10), tick(0.75, 10))
        return seen

    assert run(main()) == [(0.75, 0.75), (1.0, 1.0), (0.75, 1.5), (1.0, 2.0), (0.75, 2.25)]


def test_what_goes_to_a_thread_runs_here_and_now() -> None:
    async def main() -> None:
        here = threading.get_ident()
        assert await asyncio.to_thread(threading.get_ident) == here
        assert await asyncio.get_running_loop().run_in_executor(None, pow, 2, 5) == 32
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        assert now() == 0.0

    run(main())


def test_a_deadlock_names_who_waits_and_where() -> None:
    async def waits_for_ever(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        await asyncio.sleep(3.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_ever(asyncio.Event()), name="the engine")

    with pytest.raises(Deadlock, match=r"(?s)at 3\.000 s .*the engine: .*waits_for_ever:\d+ > Event\.wait"):
        run(main())


def test_a_loop_without_time_is_ended() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match=r"time stands still at 0\.000 s"):
        run(main(), turns=1000)


def test_the_limit_of_time_ends_a_run_and_what_cleans_up_may_pass_it() -> None:
    cleaned = []

    async def main() -> None:
        try:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
        finally:
            await asyncio.sleep(5.0)
            cleaned.append(now())

    with pytest.raises(OutOfTime, match="100"):
        run(main(), limit=100)
    assert cleaned == [pytest.approx(106.0)]


def test_what_is_left_running_is_cancelled() -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.sleep(float(10**9))
        finally:
            ended.append(now())

    async def main() -> str:
        main.task = asyncio.create_task(forever())  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        return "done"

    assert run(main()) == "done"
    assert ended == [1.0]


def test_tasks_of_a_group_are_cancelled_in_one_order() -> None:
    """Not in that of their addresses, which is a set's own."""

    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(DAY)
            finally:
                ended.append(number)

        async def fail() -> None:
            raise KeyError

        with pytest.raises(ExceptionGroup):  # noqa: PT012
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(wait(number))
                await asyncio.sleep(0)
                group.create_task(fail())
        return ended

    orders, moved = [], []
    for _ in range(5):
        orders.append(run(main()))
        moved.append(
            [asyncio.Event() for _ in range(random.randrange(1000))]
        )  # other addresses are free then
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == list(range(20))
