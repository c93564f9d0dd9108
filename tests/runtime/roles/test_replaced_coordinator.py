"""A coordinator that was replaced, and does not know it yet, carries out no action, not even one without a record."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from world import job_config

from rljob_core.errors import Fenced
from rljob_core.planner import Planner
from rljob_core.ports import Channel
from rljob_core.trajectory import FinishReason, Trajectory, VersionSpan
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.payload_index import SUMMARY_HEADER
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.weights.store import StoredWeights


def test_it_deletes_no_payload_that_its_successor_may_need() -> None:
    config = job_config()
    server = MemoryServer()

    def connect() -> MemoryStore:
        return MemoryStore(server, subject=config.subject)

    async def succeed() -> None:
        ledger = Ledger(connect(), job=config.uid, instance="c2")
        planner = Planner(config, state=await ledger.replay())
        await ledger.claim(planner.state.writer, planner.start("c2", 0.0).records)

    async def whole() -> None:
        ready = asyncio.Event()
        weights = StoredWeights(MemoryTransport(), anchor_every=1)
        first = Coordinator(
            config, connect(), weights, PromptTexts(lambda prompt, _: str(prompt)), instance="c1"
        )
        running = asyncio.create_task(first.run(ready.set))
        await ready.wait()
        await succeed()
        # Of a group that only the successor knows: to the first one it is of no use.
        unknown = Trajectory("g9000.0", 1, 9000, (), VersionSpan(0, 0), FinishReason.STOP, "e")
        await TrajectoryStore(connect()).put([unknown])
        with pytest.raises(BaseExceptionGroup) as raised:
            await running
        assert raised.group_contains(Fenced)
        left = await connect().last(Channel.TRAJECTORIES)
        assert left is not None
        assert "g9000.0" in left.headers[SUMMARY_HEADER]

    virtual_time.run(whole(), limit=600.0)
