"""A small job for the real roles, and what holds once it has ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from role_tasks import Roles
from tests.memory.store import MemoryStore
from tests.waiting import in_time

from rljob_core.config import JobConfig
from rljob_core.ports import Channel, WeightStore
from rljob_core.records import (
    FED,
    GroupReserved,
    MicroBatchAssigned,
    StepCommitted,
    StepRestored,
    decode_batch,
)
from rljob_core.spec import RLJobSpec
from rljob_runtime.messaging.ledger import CHAIN_DIGEST, CLAIM, RECORDS
from rljob_runtime.weights.create import open_store


def job(
    tmp_path: Path, model: Path, *, micro_batch_tokens: int = 200, every_steps: int = 3, **pipeline: object
) -> JobConfig:
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
                "trainer": {
                    "backend": "Emulated",
                    "microBatchTokens": micro_batch_tokens,
                    "checkpoint": {"everySteps": every_steps},
                },
            }
        ),
        weights_uri=str(tmp_path / "weights"),
        checkpoint_uri=str(tmp_path / "checkpoints"),
        trainer_log_uri=str(tmp_path / "trainer"),
    )


async def ledger(store: MemoryStore) -> list:
    last = await store.last_sequence(Channel.LEDGER)
    stored = await store.get(Channel.LEDGER, range(1, last + 1))
    return [r for m in stored if m is not None for r in decode_batch(m.data).records]


async def check(roles: Roles) -> None:
    records = await ledger(roles.store)
    steps = [r for r in records if isinstance(r, StepCommitted | StepRestored)]
    commits = [r.commit if isinstance(r, StepRestored) else r for r in steps]
    assert [c.version for c in commits] == list(range(1, 7))
    consumed = Counter(t for c in commits for part in c.micro_batches for t in part)
    assert set(consumed.values()) == {1}
    assert len(consumed) == 6 * 4 * 2
    planned = [r.group for r in records if isinstance(r, GroupReserved)]
    assert len(planned) == len(set(planned))
    weights = open_store("Files", uri=roles.config.weights_uri)
    for commit in commits:
        assert weights.manifest(commit.key).digest == commit.manifest
    await check_testimony(roles.store, weights)
    fed = Counter()
    for log in sorted(Path(roles.config.trainer_log_uri).iterdir()):
        for line in log.read_bytes().splitlines():
            batch = FED.validate_json(line)
            fed[batch.step] += len(batch.items)
    assert all(fed[step] >= 8 for step in range(6))


async def check_testimony(store: MemoryStore, weights: WeightStore) -> None:
    """Each manifest names the ledger as it was between its step's last assignment and its commit, unless restored."""
    last, seen, assigned = await store.last_sequence(Channel.LEDGER), {}, 0
    for message in await store.get(Channel.LEDGER, range(1, last + 1)):
        assert message is not None
        seen[message.headers[CHAIN_DIGEST]] = message.sequence
        if message.suffix not in {CLAIM, RECORDS}:
            continue
        for record in decode_batch(message.data).records:
            if isinstance(record, MicroBatchAssigned) and record.last:
                assigned = message.sequence
            elif isinstance(record, StepCommitted):
                (manifest,) = (m for m in weights.proposals(record.version - 1) if m.key == record.key)
                assert 0 < assigned <= seen[manifest.proposal.ledger] < message.sequence


async def finish(roles: Roles) -> None:
    line = await in_time(roles.until(lambda m: m.finished))
    assert line.finished == "Succeeded"
