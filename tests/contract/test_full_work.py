"""A coordinator that finds its engines' stream of work full waits until the operator has enlarged it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import uuid4

from cluster_jobs import SECONDS, SEEDS, job_of, operator, prepare, role_store
from e2e.harness.nats_server import EmbeddedServer
from tests.waiting import within

from rljob_core.actions import Observation, PredictLengths, SendToEngine
from rljob_core.errors import StoreFull
from rljob_core.messages import ENGINE_WORK, Cancel
from rljob_core.ports import Channel
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.permissions import Holder
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.roles.coordinator.actions import ActionRunner
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts

TRAJECTORIES = 64 << 20


class AsksNobody:
    """Lengths that nobody predicts."""

    async def ask(self, asked: PredictLengths) -> None: ...


async def test_work_that_finds_no_room_is_sent_once_there_is_some(tmp_path: Path) -> None:
    accounts = server_config(SEEDS, folder=str(tmp_path / "accounts"))
    job = job_of(uuid4().hex, None)
    async with (
        EmbeddedServer(tmp_path, accounts=accounts) as server,
        operator(server.url, tmp_path) as streams,
    ):
        await prepare(streams, job, TRAJECTORIES)
        store = role_store(server.url, job.metadata.uid or "", Holder.COORDINATOR)
        engine = role_store(server.url, job.metadata.uid or "", Holder.ROLLOUT)
        await asyncio.gather(store.open(), engine.open())

        async def observe(_: Observation) -> None: ...

        actions = ActionRunner(
            store,
            TrajectoryStore(store, max_tokens=1),
            ProgressStore(store, max_tokens=1),
            PromptTexts(lambda prompt, evaluation: f"{prompt}{evaluation}"),
            observe,
            instance="c",
            lengths=AsksNobody(),
        )
        action = SendToEngine("e0", (Cancel(("g0.0",), (1,)),))
        try:
            await fill(store)
            sending = asyncio.create_task(actions.run([action], epoch=1, ledger=""))
            await asyncio.wait([sending], timeout=0.5)
            assert not sending.done()
            async with within():
                while not sending.done():
                    if await streams.outgrown():
                        await prepare(streams, job, TRAJECTORIES)
                    await asyncio.sleep(0.1)
            sending.result()
            queue = await engine.queue(Channel.WORK, "engine.e0", name="engine-e0")
            (taken,) = await queue.fetch(messages=1, max_bytes=1 << 20, timeout=SECONDS)
        finally:
            await asyncio.gather(store.close(), engine.close())
    assert ENGINE_WORK.validate_json(taken.message.data).items == action.items


async def fill(store: NatsStore) -> None:
    """Store work of another engine until there is no room for any more."""
    for size in (900_000, 100):
        while True:
            try:
                await store.publish(Channel.WORK, "engine.other", os.urandom(size))
            except StoreFull:
                break
