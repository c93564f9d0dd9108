"""A job of a release in which all jobs shared one account: the operator moves its streams, and loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cluster_jobs import job_of, operator, prepare, role_store
from e2e.harness.nats_server import EmbeddedServer
from former_installation import (
    SECONDS,
    connected,
    fill,
    former_config,
    former_job,
    former_seeds,
    former_user,
    names_of,
    stored,
)
from nats.aio.client import RawCredentials
from stream_moves import listening, moves, until_said, words
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Channel
from rljob_core.records import EpochClaimed
from rljob_operator.nats.accounts import Seeds, issuer, known_seeds, server_config
from rljob_operator.nats.credentials import (
    Issuer,
    JobKeys,
    shared_credentials,
    shared_signing_seed,
    stream_credentials,
)
from rljob_operator.nats.jwt import NkeyKind, credentials_file, public_key, seed_of, token
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.nats_connection import brief_client
from rljob_operator.reconcile.shared_streams import SharedStreams
from rljob_operator.reconcile.stream_copies import COPIED
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.answers import JetStreamError

Messages = dict[str, list[dict[str, Any] | None]]


@dataclass
class Upgraded:
    """A job of the former installation, and the server with the configuration of this release.

    Attributes:
        server: runs.
        issuer: of this release's credentials.
        uid: of the job.
        before: its messages, as they were in the account that all jobs shared.
        former: the credentials of a worker that runs still.
        seeds: of this release.
    """

    server: EmbeddedServer
    folder: Path
    issuer: Issuer
    uid: str
    before: Messages
    former: str
    seeds: Seeds

    def operating(self, **options: float):
        """The operator of this release, which does not wait before it deletes."""
        return operator(self.server.url, self.folder, issuer=self.issuer, **({"settle": 0.0} | options))

    @property
    def streams_user(self) -> str:
        """The credentials of a user who may do everything in the shared account."""
        seed = seed_of(NkeyKind.USER, bytes(32))
        claims = {"type": "user", "issuer_account": self.issuer.shared_account, "pub": {}, "sub": {}}
        claims |= dict.fromkeys(("subs", "data", "payload"), -1)
        signing = shared_signing_seed(self.issuer.signing_seed)
        return credentials_file(
            token(name="any", subject=public_key(seed), issuer=signing, claims=claims), seed
        )

    @property
    def own(self) -> str:
        """The operator's credentials in the job's own account."""
        return stream_credentials(JobKeys(self.issuer, "default", "j", self.uid)) + self.issuer.trusted

    async def now(self) -> Messages:
        """The job's messages in its own account."""
        return await stored(self.server.url, self.own, self.uid)

    async def shared(self) -> set[str]:
        """Names of the job's streams that are in the shared account."""
        credentials = RawCredentials(shared_credentials(self.issuer))
        account = SharedStreams(partial(brief_client, self.server.url, credentials, self.issuer.trusted))
        return set(await account.bytes(self.uid, names_of(self.uid).all_streams))


@pytest.fixture
async def upgraded(tmp_path: Path) -> AsyncIterator[Upgraded]:
    uid, seeds = uuid4().hex, former_seeds()
    async with EmbeddedServer(tmp_path, accounts=former_config(seeds)) as server:
        async with former_job(server.url, seeds, uid) as store:
            await fill(store, uid)
        former = former_user(seeds, "roles")
        before = await stored(server.url, former_user(seeds, "streams"), uid)
    assert sum(map(len, before.values())) > 100
    renewed = Seeds.complete(known_seeds(json.dumps(seeds)), lambda size: uuid4().bytes * (size // 16))
    accounts = server_config(renewed, folder=str(tmp_path / "accounts"))
    async with EmbeddedServer(tmp_path, accounts=accounts) as server:
        yield Upgraded(server, tmp_path, issuer(renewed), uid, before, former, renewed)


def end(streams: JobStreams) -> None:
    """End what the operator does beside its passes, as the end of its process does."""
    for move in moves(streams).values():
        move.task.cancel()


async def test_every_message_arrives_as_it_was_and_the_job_goes_on(upgraded: Upgraded) -> None:
    async with upgraded.operating() as streams:
        await prepare(streams, job_of(upgraded.uid))
    assert await upgraded.now() == upgraded.before
    assert await upgraded.shared() == set()
    store = role_store(upgraded.server.url, upgraded.uid, Holder.COORDINATOR, issuer=upgraded.issuer)
    await store.open()
    try:
        ledger = Ledger(store, job=upgraded.uid, instance="after")
        found = (await ledger.replay()).writer
        assert found.instance == "before"
        writer = found.successor("after")
        await ledger.claim(writer, [EpochClaimed(writer.number, "after", upgraded.uid)])
        assert await store.last_sequence(Channel.TRAJECTORIES) == 31
    finally:
        await store.close()


async def test_workers_of_before_reach_nothing(upgraded: Upgraded) -> None:
    with pytest.raises(StoreUnavailable, match=r"(?i)authorization"):
        async with asyncio.timeout(SECONDS), connected(upgraded.server.url, upgraded.former):
            pass


@pytest.mark.parametrize("moved", ["0 of", "6 of", "all of", "its streams are being deleted"])
async def test_a_server_or_an_operator_that_ends_midway_loses_nothing(upgraded: Upgraded, moved: str) -> None:
    async with upgraded.operating(settle=0.5) as streams:
        await until_said(streams, upgraded.uid, moved)
        await upgraded.server.kill()
        await upgraded.server.start()
        async with asyncio.timeout(SECONDS):
            while upgraded.uid in moves(streams):
                await streams.prepare(job_of(upgraded.uid), 64 << 20)
                await asyncio.sleep(0.01)
        if moved != "its streams are being deleted":
            assert "the last attempt ended early" in words(streams, upgraded.uid)
            await until_said(streams, upgraded.uid, moved)
        end(streams)
    async with upgraded.operating() as streams:
        await prepare(streams, job_of(upgraded.uid))
    assert await upgraded.now() == upgraded.before
    assert await upgraded.shared() == set()


async def test_a_copy_of_an_attempt_that_broke_off_is_made_again(upgraded: Upgraded) -> None:
    """A server may lose what it has restored: it does not sync it."""
    trajectories = names_of(upgraded.uid).stream(Channel.TRAJECTORIES)
    async with upgraded.operating(settle=60.0) as streams:
        await until_said(streams, upgraded.uid, "all of")
        end(streams)
    async with connected(upgraded.server.url, upgraded.own) as connection:
        await connection.call(f"STREAM.DELETE.{trajectories}", {})
        empty = {"name": trajectories, "subjects": [f"{trajectories}.none"], "metadata": {COPIED: "true"}}
        await connection.call(f"STREAM.CREATE.{trajectories}", empty)
    async with upgraded.operating() as streams:
        await prepare(streams, job_of(upgraded.uid))
    assert await upgraded.now() == upgraded.before


async def test_what_is_written_meanwhile_is_not_deleted(upgraded: Upgraded) -> None:
    """A server that still has the former configuration lets the former workers write."""
    async with upgraded.operating(settle=0.5) as streams:
        await until_said(streams, upgraded.uid, "all of")
        async with connected(upgraded.server.url, upgraded.streams_user) as connection:
            await connection.request(names_of(upgraded.uid).subject_of(Channel.REWARDS, "results"), b"late")
        async with asyncio.timeout(SECONDS):
            while "was written to while it was moved" not in words(streams, upgraded.uid):
                await streams.prepare(job_of(upgraded.uid), 64 << 20)
                await asyncio.sleep(0.01)
        end(streams)
    assert await upgraded.shared() == set(names_of(upgraded.uid).all_streams)
    async with upgraded.operating() as streams:
        await prepare(streams, job_of(upgraded.uid))
    rewards = names_of(upgraded.uid).stream(Channel.REWARDS)
    assert len((await upgraded.now())[rewards]) == len(upgraded.before[rewards]) + 1


async def test_two_jobs_are_moved_at_once_and_no_more(upgraded: Upgraded) -> None:
    most = 0
    others = [uuid4().hex for _ in range(3)]

    def count() -> None:
        nonlocal most
        running = [uid for uid, move in moves(streams).items() if not move.task.done()]
        most = max(most, sum("streams are in the NATS account" in words(streams, uid) for uid in running))

    async with upgraded.operating(settle=1.0) as streams:
        async with connected(upgraded.server.url, upgraded.streams_user) as connection:
            for uid in others:
                ledger = names_of(uid).stream(Channel.LEDGER)
                await connection.call(
                    f"STREAM.CREATE.{ledger}", {"name": ledger, "subjects": [f"{ledger}.>"]}
                )
        waiting = {upgraded.uid, *others}
        with listening(count):
            async with asyncio.timeout(SECONDS):
                while waiting:
                    for uid in sorted(waiting):
                        if await streams.prepare(job_of(uid), 64 << 20):
                            waiting.discard(uid)
    assert most == 2


async def test_an_account_that_the_server_does_not_know_is_named(upgraded: Upgraded, tmp_path: Path) -> None:
    ignorant = server_config(replace(upgraded.seeds, shared=""), folder=str(tmp_path / "other-accounts"))
    job = job_of(uuid4().hex)
    async with (
        EmbeddedServer(tmp_path / "other", accounts=ignorant) as server,
        operator(server.url, tmp_path, issuer=upgraded.issuer) as streams,
    ):
        assert not await streams.prepare(job, 64 << 20)
        trouble = streams.trouble(job)
    assert trouble is not None
    assert (trouble.reason, "rljob-nats-issuer" in trouble.message) == ("StreamsRefused", True)


async def test_no_worker_writes_while_streams_are_moved(upgraded: Upgraded) -> None:
    async with upgraded.operating() as streams:
        await until_said(streams, upgraded.uid, "3 of")
        end(streams)
    store = role_store(
        upgraded.server.url, upgraded.uid, Holder.COORDINATOR, issuer=upgraded.issuer, patience=8.0
    )
    with pytest.raises(StoreUnavailable, match=r"(?i)authorization"):
        await store.open()


async def test_a_job_that_began_again_in_its_own_account_is_refused_and_nothing_is_deleted(
    upgraded: Upgraded,
) -> None:
    ledger = names_of(upgraded.uid).stream(Channel.LEDGER)
    ignorant = replace(upgraded.issuer, shared_account="")
    async with operator(upgraded.server.url, upgraded.folder, issuer=ignorant) as streams:
        await prepare(streams, job_of(upgraded.uid))
    async with upgraded.operating() as streams:
        async with asyncio.timeout(SECONDS):
            while f"{ledger} is in the account" not in words(streams, upgraded.uid):
                assert not await streams.prepare(job_of(upgraded.uid), 64 << 20)
                await asyncio.sleep(0.01)
    assert await upgraded.shared() == set(names_of(upgraded.uid).all_streams)


async def test_a_job_that_is_deleted_leaves_nothing_in_the_shared_account(upgraded: Upgraded) -> None:
    async with upgraded.operating() as streams:
        await until_said(streams, upgraded.uid, "1 of")
        await streams.remove(job_of(upgraded.uid))
    assert await upgraded.shared() == set()


async def test_the_operator_only_copies_and_deletes_there(upgraded: Upgraded) -> None:
    names = names_of(upgraded.uid)
    async with connected(upgraded.server.url, shared_credentials(upgraded.issuer)) as connection:
        for request in (f"STREAM.CREATE.{names.prefix}-x", f"STREAM.PURGE.{names.stream(Channel.LEDGER)}"):
            with pytest.raises(JetStreamError, match=r"(?i)permissions violation"):
                await connection.call(request, {})


def test_nats_init_makes_an_installation_of_the_former_seeds(tmp_path: Path) -> None:
    seeds = former_seeds()
    (tmp_path / "seeds.json").write_text(json.dumps(seeds))

    def init() -> Seeds:
        done = CliRunner().invoke(app, ["nats-init", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return Seeds.read((tmp_path / "seeds.json").read_text())

    renewed = init()
    (tmp_path / "seeds.json").write_text(
        json.dumps(seeds)
    )  # from the beginning: the streams stay within reach
    assert init().accounts == renewed.accounts
    renewed = init()
    assert (renewed.operator, renewed.system, renewed.shared) == (
        seeds["operator"], seeds["system"], seeds["streams"],
    )  # fmt: skip
    assert issuer(renewed).shared_account in (tmp_path / "accounts.conf").read_text()
    assert init() == renewed
    # Once nothing is left there, its seed is removed by hand.
    kept = json.loads((tmp_path / "seeds.json").read_text())
    del kept["shared"]
    (tmp_path / "seeds.json").write_text(json.dumps(kept))
    assert not init().shared
    assert issuer(renewed).shared_account not in (tmp_path / "accounts.conf").read_text()
    assert "shared" not in issuer(init()).text()
