"""Progress of trajectories on both message stores, also progress that is larger than one message."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from random_trajectories import trajectory

from rljob_core.actions import StoredProgress
from rljob_core.ports import Channel, MessageStore
from rljob_core.trajectory import FinishReason
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.progress import PROGRESS_HEADER, PartialTrajectory, ProgressStore

CUT, WHOLE = 2_000, 1 << 20
"""Payloads of one message: what is stored below takes several of the former."""


def made(tokens: int, *, attempt: int = 1) -> PartialTrajectory:
    whole = trajectory(7, tokens=tokens, attempt=attempt)
    return PartialTrajectory(replace(whole, id="g7.1", finish=FinishReason.UNFINISHED), ((3, "m3"),))


async def newest(store: ProgressStore) -> StoredProgress:
    found = await store.newest("g7.1")
    assert found is not None
    return found


def same(one: PartialTrajectory | None, other: PartialTrajectory) -> bool:
    return one is not None and wire.digest(one.trajectory) == wire.digest(other.trajectory)


@pytest.mark.parametrize("size", [CUT, WHOLE])
async def test_what_was_put_last_is_found_by_anybody(
    connect: Callable[[], Awaitable[MessageStore]], size: int
) -> None:
    writer = ProgressStore(await connect(), payload_bytes=size)
    reader = ProgressStore(await connect(), payload_bytes=size)
    first = await writer.put(made(500), seed=1)
    await writer.put(made(1000), seed=1, replaces=first)
    found = await newest(reader)
    assert (found.inherited.tokens, found.weights) == (1000, ((3, "m3"),))
    assert same(await reader.get("g7.1", found.inherited), made(1000))
    assert await reader.trajectories() == ("g7.1",)


@pytest.mark.parametrize(
    "lie",
    [
        {"tokens": 10**400},
        {"tokens": 499},
        {"attempt": 2},
        {"span": {"min": 0, "max": 0}},
        {"seed": 2**31},
        {"seed": -1},
    ],
    ids=str,
)
async def test_a_header_that_says_something_else_than_the_payload_is_no_progress(
    store: MessageStore, lie: dict[str, object]
) -> None:
    progress = ProgressStore(store, payload_bytes=WHOLE)
    (message,) = await store.get(Channel.PROGRESS, [await progress.put(made(500), seed=1)])
    assert message is not None
    header = json.loads(message.headers[PROGRESS_HEADER])
    header["inherited"] |= lie
    altered = {PROGRESS_HEADER: json.dumps(header)}
    await store.publish(Channel.PROGRESS, "g7.1", message.data, headers=altered)
    assert await progress.newest("g7.1") is None
    await store.publish(
        Channel.PROGRESS, "g8.1", message.data, headers=dict(message.headers), message_id="other"
    )
    assert await progress.newest("g8.1") is None, "it is of another trajectory"


async def test_progress_that_is_cut_leaves_nothing_when_it_is_replaced_deleted_or_dropped(
    store: MessageStore,
) -> None:
    progress = ProgressStore(store, payload_bytes=CUT)
    first = await progress.put(made(500), seed=1)
    assert len(await store.suffixes(Channel.PROGRESS, ">")) > 2
    second = await progress.put(made(20), seed=1, replaces=first)
    assert set(await store.suffixes(Channel.PROGRESS, ">")) == {"g7.1"}
    third = await progress.put(made(600), seed=1, replaces=second)
    await progress.delete([third])
    assert not await store.suffixes(Channel.PROGRESS, ">")
    await progress.put(made(700), seed=1)
    await store.publish(Channel.PROGRESS, "g8.0", b"another's")
    await ProgressStore(store).drop(["g7.1"])
    assert set(await store.suffixes(Channel.PROGRESS, ">")) == {"g8.0"}


async def test_an_engine_that_continues_cut_progress_deletes_all_of_it(
    connect: Callable[[], Awaitable[MessageStore]],
) -> None:
    store = await connect()
    await ProgressStore(store, payload_bytes=CUT).put(made(500), seed=1)
    successor = ProgressStore(await connect(), payload_bytes=CUT)
    got = await successor.get("g7.1", (await newest(successor)).inherited)
    assert same(got, made(500))
    assert got is not None
    sequence = await successor.put(made(900, attempt=2), seed=1, replaces=got.sequence)
    found = await newest(successor)
    assert same(await successor.get("g7.1", found.inherited), made(900, attempt=2))
    await successor.delete([sequence])
    assert not await store.suffixes(Channel.PROGRESS, ">")


async def test_without_one_of_its_chunks_it_is_no_progress(store: MessageStore) -> None:
    progress = ProgressStore(store, payload_bytes=CUT)
    await progress.put(made(500), seed=1)
    chunk = next(suffix for suffix in await store.suffixes(Channel.PROGRESS, ">") if suffix != "g7.1")
    await store.purge(Channel.PROGRESS, chunk)
    assert await progress.newest("g7.1") is None


async def test_more_than_a_message_of_the_server_may_hold(store: MessageStore) -> None:
    progress = ProgressStore(store)
    await progress.put(made(300_000), seed=1)
    found = await newest(progress)
    assert same(await progress.get("g7.1", found.inherited), made(300_000))
