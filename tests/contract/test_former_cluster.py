"""A job whose streams an earlier release has put on one of three servers, in the account that all jobs shared: they are
moved while all servers run, or while one is away, and have three replicas then."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cluster_jobs import job_of, operator
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
from nats_cluster import SIZE, NatsCluster
from stream_moves import until_said
from tests.night import some

from rljob_core.errors import StoreUnavailable
from rljob_operator.nats.accounts import Seeds, issuer, known_seeds, server_config
from rljob_operator.nats.credentials import Issuer, JobKeys, shared_credentials, stream_credentials
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.nats_connection import brief_client
from rljob_operator.reconcile.shared_streams import SharedStreams
from rljob_runtime.messaging.nats.answers import Interrupted, JetStreamError

Messages = dict[str, list[dict[str, Any] | None]]


@dataclass
class UpgradedCluster:
    """Three servers with the configuration of this release, and a job of the former one.

    Attributes:
        cluster: runs.
        issuer: of this release's credentials.
        uid: of the job.
        before: its messages, as they were in the account that all jobs shared.
    """

    cluster: NatsCluster
    issuer: Issuer
    uid: str
    before: Messages

    @property
    def own(self) -> str:
        """The operator's credentials in the job's own account."""
        return stream_credentials(JobKeys(self.issuer, "default", "j", self.uid)) + self.issuer.trusted

    async def shared(self) -> set[str]:
        """Names of the job's streams that are in the shared account."""
        credentials = RawCredentials(shared_credentials(self.issuer))
        account = SharedStreams(partial(brief_client, self.cluster.urls[1], credentials, self.issuer.trusted))
        return set(await account.bytes(self.uid, names_of(self.uid).all_streams))

    async def replicas(self) -> set[int]:
        """Of the job's streams."""
        async with connected(self.cluster.urls[1], self.own) as connection:
            infos = [
                await connection.call(f"STREAM.INFO.{name}", {}) for name in names_of(self.uid).all_streams
            ]
        return {info["config"]["num_replicas"] for info in infos}


@pytest.fixture
async def upgraded(tmp_path: Path) -> AsyncIterator[UpgradedCluster]:
    seeds = former_seeds()
    former = former_config(seeds)
    async with NatsCluster(tmp_path, proxied=False, accounts=lambda _: former) as cluster:
        uid, before = await started(cluster, seeds)
        renewed = Seeds.complete(known_seeds(json.dumps(seeds)), os.urandom)
        for number in range(SIZE):
            cluster.shut_down(number)
        for number in range(SIZE):
            config, files = tmp_path / f"s{number}.conf", cluster.files(number)
            accounts = server_config(renewed, folder=str(files / "accounts"))
            config.write_text(config.read_text().replace(former, accounts))
            cluster.start(number)
        yield UpgradedCluster(cluster, issuer(renewed), uid, before)


async def started(cluster: NatsCluster, seeds: dict[str, str]) -> tuple[str, Messages]:
    """The UID and the messages of a former job, begun again until the servers have formed a cluster."""
    async with asyncio.timeout(SECONDS):
        while True:
            uid = uuid4().hex
            try:
                async with former_job(cluster.urls[0], seeds, uid) as store:
                    await fill(store, uid)
                return uid, await stored(cluster.urls[1], former_user(seeds, "streams"), uid)
            except (StoreUnavailable, JetStreamError, Interrupted):
                await asyncio.sleep(0.2)


async def until_prepared(streams: JobStreams, upgraded: UpgradedCluster) -> None:
    """Prepare the job until its streams are its own, and as many as there are to be."""
    async with asyncio.timeout(3 * SECONDS):
        while not await streams.prepare(job_of(upgraded.uid), 64 << 20):  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.1)


async def test_every_message_arrives_and_has_three_replicas(
    upgraded: UpgradedCluster, tmp_path: Path
) -> None:
    async with operator(upgraded.cluster.urls[0], tmp_path, issuer=upgraded.issuer, settle=0.0) as streams:
        await until_prepared(streams, upgraded)
        assert await stored(upgraded.cluster.urls[2], upgraded.own, upgraded.uid) == upgraded.before
        assert await upgraded.shared() == set()
        await until_replicated(streams, upgraded)


@pytest.mark.parametrize("away", some(range(SIZE), 1))
async def test_a_server_that_is_killed_meanwhile_delays_the_move_alone(
    upgraded: UpgradedCluster, tmp_path: Path, away: int
) -> None:
    """Whichever it is: the one with the streams, the one that the operator is connected to, the leader."""
    async with operator(
        ",".join(upgraded.cluster.urls), tmp_path, issuer=upgraded.issuer, settle=0.0
    ) as streams:
        await until_said(streams, upgraded.uid, "4 of")
        upgraded.cluster.kill(away)
        await asyncio.sleep(2)
        upgraded.cluster.start(away)
        await until_prepared(streams, upgraded)
        assert await stored(upgraded.cluster.urls[2], upgraded.own, upgraded.uid) == upgraded.before
        assert await upgraded.shared() == set()
        await until_replicated(streams, upgraded)


async def until_replicated(streams: JobStreams, upgraded: UpgradedCluster) -> None:
    """Wait until all servers have the streams; the first ones may have answered before the last had joined them."""
    async with asyncio.timeout(SECONDS):
        while await upgraded.replicas() != {SIZE}:
            if await streams.outgrown():
                await streams.prepare(job_of(upgraded.uid), 64 << 20)
            await asyncio.sleep(0.1)
