"""One reconcile per key at a time, however often and by whom it was marked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from tests.waiting import until_async

from rljob_operator.backoff import Backoff
from rljob_operator.reconcile.work_queue import WorkQueue

QUICK = Backoff(first=0.01, last=0.05)
WHILE = 0.1
"""Seconds after which what must not happen would have."""


@asynccontextmanager
async def running(
    handle: Callable[[str], Awaitable[float | None]], *, workers: int = 4, rest: float = 0.0
) -> AsyncIterator[tuple[WorkQueue[str], list[Exception]]]:
    errors: list[Exception] = []
    queue = WorkQueue[str](
        handle, failed=lambda _, e: errors.append(e), workers=workers, backoff=QUICK, rest=rest
    )
    task = asyncio.create_task(queue.run())
    try:
        yield queue, errors
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_many_marks_are_one_look_and_keys_run_side_by_side_but_never_twice_at_once() -> None:
    looks: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    most = 0
    go = asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal most
        looks[key] += 1
        inside[key] += 1
        assert inside[key] == 1
        most = max(most, inside.total())
        await go.wait()
        inside[key] -= 1

    async with running(handle) as (queue, _):
        for _ in range(50):
            for key in "abc":
                queue.mark(key, after=0.0)
        await until_async(lambda: inside.total() == 3)
        queue.mark("a", after=0.0)  # while it is looked at: once more after it
        queue.mark("a", after=0.0)
        await asyncio.sleep(WHILE)
        go.set()
        await until_async(lambda: looks["a"] == 2 and not inside.total())
        await asyncio.sleep(WHILE)
    assert looks == {"a": 2, "b": 1, "c": 1}
    assert most == 3


async def test_the_earliest_mark_stands_and_what_is_handled_may_ask_for_another_look() -> None:
    looked = asyncio.Queue[str]()

    async def handle(key: str) -> float | None:
        await looked.put(key)
        return 0.01 if looked.qsize() < 3 else None

    async with running(handle) as (queue, _):
        queue.mark("a", after=0.0)
        queue.mark("a", after=60.0)
        await until_async(lambda: looked.qsize() == 3)
        await asyncio.sleep(WHILE)
    assert looked.qsize() == 3


async def test_a_failing_answer_fails_again_and_the_others_continue() -> None:
    looks: Counter[str] = Counter()

    async def handle(key: str) -> None:
        looks[key] += 1
        if key == "bad" and looks[key] < 4:
            raise ValueError(key)

    async with running(handle) as (queue, errors):
        queue.mark("bad", after=0.0)
        queue.mark("good", after=0.0)
        await until_async(lambda: looks["bad"] == 4)
        await asyncio.sleep(WHILE)
    assert looks == {"bad": 4, "good": 1}
    assert len(errors) == 3


async def test_what_is_urgent_goes_first() -> None:
    order: list[str] = []

    async def handle(key: str) -> None:
        order.append(key)
        await asyncio.sleep(0.01)

    async with running(handle, workers=1) as (queue, _):
        for key in "abcdef":
            queue.mark(key, after=0.0)
        queue.mark("user", after=0.0, urgent=True)
        queue.mark("f", after=0.0, urgent=True)
        await until_async(lambda: len(order) == 7)
        await asyncio.sleep(WHILE)
    assert order[:2] == ["user", "f"]
    assert sorted(order) == [*"abcdef", "user"]


async def test_a_key_rests_before_its_next_look_unless_it_is_urgent_or_asked_for_it() -> None:
    looked: list[str] = []

    async def handle(key: str) -> float | None:
        looked.append(key)
        return 0.0 if looked == ["asks"] else None

    async with running(handle, rest=30.0) as (queue, _):
        queue.mark("asks", after=0.0)
        await until_async(lambda: len(looked) == 2)
        assert looked == ["asks", "asks"]
        queue.mark("asks", after=0.0)
        queue.mark("other", after=0.0)
        await until_async(lambda: "other" in looked)
        await asyncio.sleep(WHILE)
        assert looked == ["asks", "asks", "other"]
        queue.mark("asks", after=0.0, urgent=True)
        await until_async(lambda: len(looked) == 4)
    assert looked == ["asks", "asks", "other", "asks"]
