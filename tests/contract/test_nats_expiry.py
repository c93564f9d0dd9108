"""Credentials that expire while they are used, on a real nats-server: whoever finds a newer token goes on with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from cluster_jobs import ISSUER, SECONDS, SEEDS, job_of, operator, prepare
from e2e.harness.nats_server import EmbeddedServer
from tests.waiting import in_time, until_async, within

from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.children.nats_credentials import tokens_config_map
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.credentials import JobKeys, secret_credentials
from rljob_operator.nats.permissions import Holder
from rljob_runtime.messaging.nats.store import NatsStore

LIFETIME = 3
FIRST = 2
"""Sequence of the first trajectory: the operator has written one message before."""


class Member:
    """One role of a job, whose token is in a file."""

    def __init__(self, server: EmbeddedServer, folder: Path, uid: str, holder: Holder) -> None:
        self._url = server.url
        self._keys = JobKeys(ISSUER, "default", "j", uid)
        self._holder = holder
        self._path = folder / f"{holder}-token"
        self.renew()

    def renew(self, lifetime: int = LIFETIME) -> None:
        """Replace the file, as the kubelet does."""
        written = self._path.with_suffix(".new")
        expires = int(time.time()) + lifetime
        tokens = tokens_config_map(job_of(self._keys.uid), [self._holder], ISSUER, expires=expires)
        written.write_text(tokens["data"][self._holder.value])
        written.replace(self._path)

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renew the token again and again, before it expires."""

        async def again() -> None:
            while True:
                self.renew()
                await asyncio.sleep(LIFETIME / 3)

        task = asyncio.create_task(again())
        try:
            yield
        finally:
            task.cancel()

    def store(self, *, patience: float = SECONDS) -> NatsStore:
        uid = self._keys.uid
        names = StreamNames.of_job(namespace="default", job="j", uid=uid)
        return NatsStore(
            self._url,
            subject=names.subject,
            stream_prefix=names.prefix,
            credentials=secret_credentials(self._keys, self._holder),
            token_path=str(self._path),
            inbox=inbox_of(uid, self._holder),
            create=False,
            patience=patience,
        )

    @asynccontextmanager
    async def opened(self, **options: float) -> AsyncIterator[NatsStore]:
        store = self.store(**options)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedServer, str]]:
    """A server that asks for credentials, and the UID of a job that has its streams there."""
    uid = uuid4().hex
    accounts = server_config(SEEDS, folder=str(tmp_path / "accounts"))
    async with EmbeddedServer(tmp_path, accounts=accounts) as server:
        async with operator(server.url, tmp_path) as streams:
            await prepare(streams, job_of(uid))
        yield server, uid


def connections(store: NatsStore) -> int:
    return store._connection.state.generation


async def until_lost(store: NatsStore) -> None:
    await until_async(lambda: not store._connection.state.connected)


async def test_a_writer_and_a_reader_outlive_their_tokens_and_nothing_is_lost_or_repeated(
    served: tuple[EmbeddedServer, str], tmp_path: Path
) -> None:
    server, uid = served
    writer, reader = (Member(server, tmp_path, uid, holder) for holder in (Holder.ROLLOUT, Holder.READER))
    sequences: list[int] = []
    read: list[bytes] = []

    async def write(store: NatsStore) -> None:
        while connections(store) < 4 or connections(reading) < 4:
            some = [str(len(sequences) + n).encode() for n in range(20)]
            sequences.extend(
                await asyncio.gather(*(store.publish(Channel.TRAJECTORIES, "payload", n) for n in some))
            )
        await store.publish(Channel.TRAJECTORIES, "payload", b"end")

    async def take(store: NatsStore) -> None:
        async for batch in store.read(Channel.TRAJECTORIES, start=FIRST):
            read.extend(message.data for message in batch)
            if read[-1] == b"end":
                return

    async with (
        within(),
        writer.renewed(),
        reader.renewed(),
        writer.opened() as writing,
        reader.opened() as reading,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(take(reading))
        await write(writing)
    assert sorted(sequences) == list(range(FIRST, FIRST + len(sequences))), "none was stored twice"
    assert sorted(map(int, read[:-1])) == list(range(len(sequences)))


async def test_a_token_that_is_renewed_late_loses_nothing(
    served: tuple[EmbeddedServer, str], tmp_path: Path
) -> None:
    server, uid = served
    member = Member(server, tmp_path, uid, Holder.COORDINATOR)
    async with member.opened() as store:
        assert await store.publish(Channel.METRICS, "steps", b"1") == 1
        await until_lost(store)
        waiting = asyncio.create_task(store.publish(Channel.METRICS, "steps", b"2"))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        member.renew(60)
        assert await in_time(waiting) == 2


@pytest.mark.nightly
async def test_a_token_that_is_not_renewed_is_refused_and_the_error_says_what_to_do(
    served: tuple[EmbeddedServer, str], tmp_path: Path
) -> None:
    server, uid = served
    member = Member(server, tmp_path, uid, Holder.COORDINATOR)
    remedy = (
        r"credentials of default/j/coordinator in .*-token expired at 20.*Z: the operator writes newer ones"
    )
    async with member.opened(patience=2) as store:
        await until_lost(store)
        with pytest.raises(StoreUnavailable, match=remedy):
            await store.publish(Channel.METRICS, "steps", b"1")
        with pytest.raises(StoreUnavailable, match=remedy):
            await anext(aiter(store.read(Channel.METRICS)))
    with pytest.raises(StoreUnavailable, match=remedy):
        await member.store(patience=8).open()


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), ("", "holds no NATS token"), ("x", "Authorization")]
)
async def test_a_file_without_a_token_is_named(
    served: tuple[EmbeddedServer, str], tmp_path: Path, content: str | None, reason: str
) -> None:
    server, uid = served
    member = Member(server, tmp_path, uid, Holder.COORDINATOR)
    path = tmp_path / "coordinator-token"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreUnavailable, match=reason):
        await member.store(patience=3).open()
