"""An engine's heartbeat says how much it holds and how fast it is."""

from __future__ import annotations

import asyncio

import virtual_time
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from world import job_config

from rljob_core.messages import (
    ENGINE_SIGNAL,
    ENGINE_WORK,
    VERSION_ANNOUNCED,
    EngineProfile,
    EngineSignal,
    EngineWorkBatch,
    Generate,
    VersionAnnounced,
)
from rljob_core.ports import Channel
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.weights.store import StoredWeights


class Tokenizer:
    """Bytes are tokens."""

    stop_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_a_heartbeat_has_the_context_the_cache_and_the_step_times_of_the_engine() -> None:
    async def beat() -> EngineSignal:
        config = job_config(rollout={"pools": [{"name": "a"}], "sampling": {"maxTokens": 100}})
        options = {"stepSeconds": 0.2, "kvTokens": 4000, "lengths": {"median": 100, "min": 100}}
        server = MemoryServer()
        store = MemoryStore(server, subject=config.subject)
        announced = VersionAnnounced(1, 0, None, "")
        await store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))
        rollout = Rollout(
            config,
            store,
            StoredWeights(MemoryTransport(), anchor_every=1),
            EmulatedEngine(EmulatedEngineOptions.model_validate(options)),
            Tokenizer(),
            vocabulary=1 << 31,
            pod="a-0",
            pool="a",
        )
        ready = asyncio.Event()
        running = asyncio.create_task(rollout.run(asyncio.Event(), ready.set))
        await ready.wait()
        generate = Generate("g0.0", 1, 0, 0, "sampled", 0)
        work = EngineWorkBatch(1, (generate,), {"g0": "a prompt of 22 letters"})
        await store.publish(Channel.WORK, f"engine.{rollout.instance}", ENGINE_WORK.dump_json(work))
        await asyncio.sleep(6.0)
        running.cancel()
        await asyncio.wait([running])
        return ENGINE_SIGNAL.validate_json(server.job(config.subject).signals.since(1)[-1].data)

    signal = virtual_time.run(beat(), limit=60.0)
    assert (signal.running, signal.kv_tokens) == (1, 4000)
    assert signal.tokens > 20
    assert signal.context == 22 + signal.tokens
    assert signal.profile == EngineProfile(0.2, 0.0, 0.0, steps=signal.tokens)
