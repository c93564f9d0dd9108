"""What one prompt in 1,000 costs whose environment fails each time: its own group, and little of the job's time.

It costs the same in a shorter job. So a commit plays a job of 200 prompts, and `make nightly` the one of 1,000.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
from episodes import GameFaults, Misdeed
from proof import records_of
from simulation import Job, Mishaps, simulate
from tests.night import NIGHT, some
from world import job_config

from rljob_core.config import JobConfig
from rljob_core.records import GroupAborted, SiblingReset
from rljob_core.trajectory import group_of

pytestmark = pytest.mark.computes

PARTS = 1 if NIGHT else 5
"""The job has 1,000 prompts over this."""
STEPS, PROMPTS, SIBLINGS, ENGINES = 125 // PARTS, 8, 2, 4
POISONED = STEPS * PROMPTS // 2
KINDS = ("raises", "crashes", "hangs", "invalid")


def long_job(_: random.Random, *, faults: GameFaults) -> tuple[JobConfig, Mishaps, int]:
    """A job whose environment may take 20 s for a call."""
    lengths = {"median": 40.0, "min": 20, "max": 90}
    options = {"slots": 4, "stepSeconds": 0.15, "lengths": lengths}
    environment = {"name": "simulated", "maxTurns": 3, "timeoutSeconds": 20.0, "episodeSeconds": 120}
    config = job_config(
        steps=STEPS,
        data={"promptsPerStep": PROMPTS, "groupSize": SIBLINGS},
        reward={"functions": ["environment"]},
        trainer={"microBatchTokens": 1000, "checkpoint": {"everySteps": STEPS}},
        rollout={
            "pools": [{"name": "a"}],
            "engine": {"name": "Emulated", "options": options},
            "sampling": {"maxTokens": 400},
            "environment": environment,
        },
    )
    return config, Mishaps(games=faults), ENGINES


def seconds_of(faults: GameFaults) -> tuple[float, Job]:
    """How long the job takes, in virtual time."""
    ended = 0.0

    async def clock(job: Job) -> None:
        nonlocal ended
        await job.done.wait()
        ended = asyncio.get_running_loop().time()

    job = simulate(1, clock, draw=partial(long_job, faults=faults))
    return ended, job


@pytest.fixture(scope="module")
def sound() -> float:
    """Seconds of the job that has no poison."""
    return seconds_of(GameFaults(seconds=(0.1, 2.0)))[0]


@pytest.mark.parametrize("kind", some(KINDS, 1))
def test_it_costs_its_own_group_and_a_twentieth_of_the_time_at_most(kind: str, sound: float) -> None:
    poison = GameFaults(seconds=(0.1, 2.0), poison=(False, POISONED), misdeed=Misdeed(kind))
    seconds, job = seconds_of(poison)
    records = [record for _, record in records_of(job)]
    aborted = [r for r in records if isinstance(r, GroupAborted) and r.reason != "JobFinished"]
    assert [(r.group, r.reason) for r in aborted] == [(f"g{POISONED}", "PromptExhausted")]
    failed = {group_of(r.trajectory) for r in records if isinstance(r, SiblingReset) and r.failure}
    assert failed == {f"g{POISONED}"}
    assert seconds - sound <= 0.05 * PARTS * sound, f"{seconds:.0f} s instead of {sound:.0f} s"
