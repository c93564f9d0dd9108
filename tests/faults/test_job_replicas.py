"""A job's streams on three servers that ask for credentials: as many replicas as the job says, or three."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from cluster_jobs import SECONDS, SEEDS, job_of, operator, prepare, refusal, replicas_of, role_store
from nats_cluster import NatsCluster
from tests.waiting import within

from rljob_cli.run_folder.folder import RunFolder
from rljob_core.ports import Channel
from rljob_core.spec import NatsSpec
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.permissions import Holder


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    def accounts(files: Path) -> str:
        return server_config(SEEDS, folder=str(files / "accounts"))

    async with NatsCluster(tmp_path, proxied=False, accounts=accounts) as running:
        yield running


async def test_jobs_share_the_storage_of_a_cluster_as_that_of_one_server(tmp_path: Path) -> None:
    """Its servers set nothing aside, so the operator does not promise more than they have."""
    limit = 900 << 20

    def accounts(files: Path) -> str:
        limits = {"store_dir": str(files / "store"), "max_file_store": limit}
        return server_config(SEEDS, folder=str(files / "accounts")) + f"\njetstream: {json.dumps(limits)}\n"

    async with (
        NatsCluster(tmp_path, proxied=False, accounts=accounts) as cluster,
        operator(cluster.urls[0], tmp_path) as streams,
    ):
        first, second, third = (job_of(uuid4().hex) for _ in range(3))
        for job in (first, second):
            await prepare(streams, job)
        message = await refusal(streams, third, 512 << 20)
        assert "the NATS server has no more" in message


async def test_the_operator_gives_streams_as_many_replicas_as_the_job_says(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    silent, asking = uuid4().hex, uuid4().hex
    async with operator(cluster.urls[0], tmp_path) as streams:
        await prepare(streams, job_of(silent, None))
        async with within():
            while set((await replicas_of(cluster.urls[1], silent)).values()) != {3}:
                # The first servers answered before the last one had joined them.
                if await streams.outgrown():
                    await streams.prepare(job_of(silent, None), 1 << 20)
                await asyncio.sleep(0.1)

        message = await refusal(streams, job_of(asking, 5), 1 << 20)
        assert "spec.nats.replicas: 5 replicas need as many NATS servers, and the cluster has 3" in message

        await prepare(streams, job_of(asking, 1))
        assert set((await replicas_of(cluster.urls[1], asking)).values()) == {1}
        stores = {
            holder: role_store(cluster.urls[2], asking, holder) for holder in (Holder.ROLLOUT, Holder.REWARD)
        }
        for store in stores.values():
            await store.open()
        for number in range(20):
            await stores[Holder.ROLLOUT].publish(Channel.TRAJECTORIES, "payload", b"%d" % number)
        queue = await stores[Holder.REWARD].queue(Channel.TRAJECTORIES, "payload", name="reward")
        taken = list(await queue.fetch(messages=5, max_bytes=1 << 20, timeout=SECONDS))

        await prepare(streams, job_of(asking, 3))  # while the job runs
        async with within():
            while set((await replicas_of(cluster.urls[1], asking)).values()) != {3}:  # noqa: ASYNC110
                await asyncio.sleep(
                    0.1
                )  # streams get them one after the other, and a queue follows its stream
        while len(taken) < 20:
            taken += await queue.fetch(messages=20, max_bytes=1 << 20, timeout=SECONDS)
        assert [int(delivery.message.data) for delivery in taken] == list(range(20))
        for store in stores.values():
            await store.close()


def test_a_local_run_without_a_server_of_the_users_own_keeps_one(tmp_path: Path) -> None:
    job, folder = job_of(uuid4().hex, 3), RunFolder(tmp_path)
    assert resolve_job(job, folder.defaults("")).config.replicas == 1
    named = NatsSpec(url="nats://nats:4222", replicas=3)
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"nats": named})})
    assert resolve_job(job, folder.defaults("")).config.replicas == 3
