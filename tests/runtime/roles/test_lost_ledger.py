"""A trainer proposes a step that names a part of the ledger which a real server has lost: it is restored."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
from e2e.harness.nats_server import EmbeddedServer
from tests.memory.weights import MemoryTransport
from tests.waiting import in_time
from world import World, job_config

from rljob_cli.audit import audit
from rljob_cli.audit.read import collect
from rljob_core.config import JobConfig
from rljob_core.messages import StepProposed, StepStats
from rljob_core.ports import Channel
from rljob_core.records import StepCommitted, StepRestored
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.messaging.ledger import RECORDS, Ledger, chain_digest, read_batch
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.weights.store import StoredWeights


async def test_a_step_that_names_a_lost_part_of_the_ledger_is_restored(
    tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    config = job_config(steps=2).model_copy(update={"job": f"j{uuid4().hex[:8]}"})
    proposal, store = await assigned(config, nats_server)
    transport = MemoryTransport()
    weights, ready = StoredWeights(transport, anchor_every=1), asyncio.Event()
    its = connect(config, nats_server)
    await its.open()
    coordinator = Coordinator(config, its, weights, PromptTexts(lambda prompt, _: str(prompt)), instance="c2")
    running = asyncio.create_task(coordinator.run(ready.set))
    try:
        await in_time(ready.wait())
        tensors = [("w", np.zeros(1, np.float32))]
        manifest = weights.write(version=1, parent="", proposal=proposal, key=proposal.key, tensors=tensors)
        proposal = replace(proposal, manifest=manifest.digest)
        await publish_event(store, StepProposed(proposal, StepStats()))
        commit = await in_time(recorded(store))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await its.close()
        await store.close()
    assert commit == StepRestored(proposal, moved={}, dropped=())
    findings = audit(await collect(connect(config, nats_server), transport, job=config.uid, trainer=tmp_path))
    (unaltered,) = (check for check in findings.checks if check.name == "unaltered")
    assert unaltered.holds


def connect(config: JobConfig, server: EmbeddedServer) -> NatsStore:
    return NatsStore(server.url, subject=config.subject, stream_prefix=config.stream_prefix)


async def assigned(config: JobConfig, server: EmbeddedServer) -> tuple[StepCommitted, NatsStore]:
    """The ledger of a coordinator up to the last micro-batch of its first step, and what its trainer will propose.

    The micro-batch was sent again later, after records that the server has lost.
    """
    world = World(config)
    world.start()
    state = world.planner.state
    while not state.micro_batches or not state.micro_batches[-1].last:
        assert world.step()
    store = connect(config, server)
    await store.open()
    ledger = Ledger(store, job=config.uid, instance="c1")
    await ledger.claim(world.ledger[0].writer, world.ledger[0].records)
    for batch in world.ledger[1:]:
        await ledger.append(batch.writer, batch.records)
    assert state.trainer is not None
    proposal = StepCommitted(
        version=1,
        parent="",
        attempt=state.trainer.attempt,
        epoch=state.trainer.epoch,
        micro_batches=state.assigned(),
        max_staleness=state.buffers.buffers[0].max_staleness,
        random_state="",
        manifest="",
        key="v00000001-a1",
        ledger=chain_digest(ledger.digest, "c1/lost", RECORDS, b""),
    )
    return proposal, store


async def recorded(store: NatsStore) -> StepCommitted | StepRestored:
    """The first step that the ledger has."""
    async for messages in store.read(Channel.LEDGER):
        for message in messages:
            for record in read_batch(message).records if message.suffix == RECORDS else ():
                if isinstance(record, StepCommitted | StepRestored):
                    return record
    raise AssertionError
