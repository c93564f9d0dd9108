"""Whole jobs whose prompts are longer than the trajectory stream was made for: none stands still, whatever is slow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import virtual_time
from faulty_store import Faults
from proof import prove
from simulation import Job, Mishaps
from tests.memory.store import MemoryServer
from world import job_config

from rljob_core import streams_budget
from rljob_core.config import JobConfig
from rljob_core.errors import JobFailed
from rljob_core.ports import Channel
from rljob_core.records import SiblingReset
from rljob_core.streams_budget import payload_bytes, trajectory_stream_bytes
from rljob_runtime.messaging.ledger import RECORDS, read_batch

PROMPT, LONGEST, SIBLINGS = 8000, 200, 2
BATCH = 4 * SIBLINGS * payload_bytes(prompt_tokens=PROMPT + 16, response_tokens=LONGEST)
"""What the trajectories of one step take at most."""


@pytest.fixture(autouse=True)
def short_prompts_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream begins with room for prompts that are much shorter than these."""
    monkeypatch.setattr(streams_budget, "PROMPT_TOKENS", 64)
    monkeypatch.setattr(streams_budget, "MINIMUM", 0)


def long_prompts(seed: int, **changes: object) -> JobConfig:
    """Two steps ahead, responses of very different lengths: some engines fill the stream while another is slow."""
    lengths = {"median": 10.0, "sigma": 2.0, "promptSigma": 0.1, "min": 2, "max": LONGEST, "seed": seed}
    options = {"slots": 16, "stepSeconds": 0.05, "lengths": lengths}
    return job_config(
        steps=5,
        data={"promptsPerStep": 4, "groupSize": SIBLINGS},
        pipeline={"mode": "BoundedAsync", "maxStaleness": 2},
        rollout={
            "pools": [{"name": "a"}],
            "engine": {"name": "Emulated", "options": options},
            "sampling": {"maxTokens": LONGEST},
        },
        **changes,
    )


def simulate(
    seed: int, folder: Path, *, storage: int, mishaps: Mishaps | None = None, **changes: object
) -> Job:
    """Run a job on a server with so many bytes of storage for its trajectories."""
    config, chance = long_prompts(seed, **changes), random.Random(seed)
    server = MemoryServer(trajectory_bytes=trajectory_stream_bytes(config.spec), storage=storage)
    lengths = random.Random(seed)
    sizes = [
        lengths.choice([20, PROMPT // 3, PROMPT]) if "evaluation" in changes else PROMPT for _ in range(100)
    ]

    async def whole() -> Job:
        job = Job(
            chance,
            config,
            mishaps or Mishaps(),
            engines=2,
            folder=folder,
            server=server,
            render=lambda prompt: f"prompt {prompt} ".ljust(sizes[prompt], "."),
        )
        await job.run()
        return job

    return virtual_time.run(whole(), limit=4 * 3600.0)


def records(job: Job) -> list[object]:
    stream = job.server.job(job.config.subject).streams[Channel.LEDGER]
    return [record for m in stream.since(1) if m.suffix == RECORDS for record in read_batch(m).records]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batches", [1.0, 1.3, 2.5, 100.0])
def test_a_job_with_long_prompts_ends_however_small_its_store_is(
    seed: int, batches: float, tmp_path: Path
) -> None:
    job = simulate(seed, tmp_path, storage=int(BATCH * batches))
    assert prove(job)
    stream = job.server.job(job.config.subject).streams[Channel.TRAJECTORIES]
    assert stream.limit is not None
    assert stream.limit <= BATCH * batches


@pytest.mark.parametrize("seed", range(8))
def test_it_ends_whatever_dies_and_however_long_single_prompts_are(seed: int, tmp_path: Path) -> None:
    mishaps = Mishaps(deaths=3, twins=1, freezes=1, drains=1, faults=Faults(delay=0.2))
    evaluation = {"samples": 2, "everySteps": 2}
    job = simulate(seed, tmp_path, storage=int(BATCH * 1.05), mishaps=mishaps, evaluation=evaluation)
    assert prove(job)


def test_a_store_that_cannot_hold_one_step_ends_the_job_and_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"step 0 needs .* MB .*spec\.data\.promptsPerStep is 4"):
        simulate(0, tmp_path, storage=BATCH // 2)


def test_nothing_is_generated_twice_where_prompts_are_alike(tmp_path: Path) -> None:
    job = simulate(3, tmp_path, storage=int(BATCH * 1.3))
    assert not [record for record in records(job) if isinstance(record, SiblingReset)]
