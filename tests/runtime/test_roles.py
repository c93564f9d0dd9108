"""The real roles in one event loop, over the in-memory store, with the emulated engine and backend."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from roles import Roles
from tiny_models import tiny_model

from rljob_core.config import JobConfig
from rljob_core.ports import Channel
from rljob_core.records import FED, GroupReserved, StepCommitted, decode_batch
from rljob_core.spec import RLJobSpec
from rljob_runtime.memory_store import MemoryStore
from rljob_runtime.weights_files import FilesWeightStore


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def job(tmp_path: Path, model: Path, **pipeline: object) -> JobConfig:
    return JobConfig(
        namespace="default",
        job="roles",
        uid="u1",
        spec=RLJobSpec.model_validate(
            {
                "steps": 6,
                "model": {"uri": str(model)},
                "data": {"dataset": "chain_sum", "promptsPerStep": 4, "groupSize": 2},
                "evaluation": {"everySteps": 3, "samples": 5},
                "pipeline": pipeline,
                "rollout": {
                    "engine": {
                        "name": "Emulated",
                        "options": {
                            "slots": 6,
                            "stepSeconds": 0.001,
                            "lengths": {"median": 8, "min": 1, "max": 40},
                        },
                    },
                    "pools": [{"name": "a", "replicas": 2}],
                },
                "trainer": {"backend": "Emulated", "microBatchTokens": 200, "checkpoint": {"everySteps": 3}},
            }
        ),
        weights_uri=str(tmp_path / "weights"),
        checkpoint_uri=str(tmp_path / "checkpoints"),
        trainer_log_uri=str(tmp_path / "trainer"),
    )


async def ledger(store: MemoryStore) -> list:
    last = await store.last_sequence(Channel.LEDGER)
    async for messages in store.read(Channel.LEDGER):
        return [r for m in messages if m.sequence <= last for r in decode_batch(m.data).records]
    raise AssertionError


async def check(roles: Roles) -> None:
    records = await ledger(roles.store)
    commits = [r for r in records if isinstance(r, StepCommitted)]
    assert [c.version for c in commits] == list(range(1, 7))
    consumed = Counter(t for c in commits for part in c.micro_batches for t in part)
    assert set(consumed.values()) == {1}
    assert len(consumed) == 6 * 4 * 2
    planned = [r.group for r in records if isinstance(r, GroupReserved)]
    assert len(planned) == len(set(planned))
    weights = FilesWeightStore(roles.config.weights_uri)
    for commit in commits:
        assert weights.manifest(commit.key).digest == commit.manifest
    fed = Counter()
    for log in sorted(Path(roles.config.trainer_log_uri).iterdir()):
        for line in log.read_bytes().splitlines():
            batch = FED.validate_json(line)
            fed[batch.step] += len(batch.items)
    assert all(fed[step] >= 8 for step in range(6))


@pytest.mark.parametrize(
    "pipeline",
    [
        {"mode": "Synchronous"},
        {"mode": "Streaming", "inflight": "Keep"},
        {"mode": "BoundedAsync", "maxStaleness": 2},
        {"mode": "BoundedAsync", "maxStaleness": 1, "inflight": "Keep"},
        {"mode": "BoundedAsync", "maxStaleness": 1, "inflight": "Restart"},
    ],
    ids=lambda p: "-".join(map(str, p.values())),
)
async def test_a_job_runs_to_its_end(tmp_path, model, pipeline):
    async with Roles(job(tmp_path, model, **pipeline), model) as roles:
        line = await asyncio.wait_for(roles.until(lambda m: m.finished), 60)
        assert line.finished == "Succeeded"
        assert line.trajectories["consumed"] == 48
        await asyncio.wait_for(roles.tasks["trainer"], 10)
    await check(roles)


@pytest.mark.parametrize("victim", ["coordinator", "trainer", "reward", "a-0"])
async def test_a_job_survives_the_death_of_a_role(tmp_path, model, victim):
    async with Roles(job(tmp_path, model, mode="BoundedAsync", maxStaleness=1), model) as roles:
        await asyncio.wait_for(roles.until(lambda m: m.version >= 2), 60)
        await roles.kill(victim)
        match victim:
            case "coordinator":
                roles.coordinator("c2")
            case "trainer":
                roles.trainer()
            case "reward":
                roles.reward()
            case _:
                roles.rollout(victim)
        line = await asyncio.wait_for(roles.until(lambda m: m.finished), 90)
        assert line.finished == "Succeeded"
    await check(roles)
