"""Which of the lines that a job's stream holds count for a run that continues it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import pytest
from example_job import write_job
from rich.console import Console
from tests.memory.store import MemoryServer, MemoryStore
from tests.waiting import until_async, within

from rljob_cli.manifest.load import load_job
from rljob_cli.run.live_view import open_view
from rljob_cli.run.metrics_file import MetricsFile
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run.stream_follower import StreamFollower
from rljob_cli.run.view import EventLog
from rljob_core.actions import PublishMetrics
from rljob_core.messages import StepMetrics
from rljob_runtime.messaging.announce import publish_metrics

COMMIT = StepMetrics(1, 1, 1.0, reward_mean=0.5, epoch=1)


def end(version: int, outcome: str) -> StepMetrics:
    return StepMetrics(version, version, 2.0, finished=outcome, epoch=1)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(MemoryServer(), subject="job")
    await store.open()
    await publish_metrics(store, PublishMetrics(COMMIT))
    yield store
    await store.close()


async def follow_to_the_end(store: MemoryStore, folder: Path, *, steps: int, later: StepMetrics) -> None:
    """Follow as a run of so many steps until the job has ended: not before `later`."""
    job = load_job(write_job(folder), [f"spec.steps={steps}"])
    view = open_view(Console(file=StringIO()), job, EventLog(folder / "events.log"))
    metrics = MetricsFile(folder / "metrics.jsonl")
    progress = RunProgress()
    follower = StreamFollower(progress, metrics, view, job.spec)
    following = asyncio.create_task(follower.follow(store))
    try:
        async with within():
            await until_async(lambda: progress.lines)
            await asyncio.sleep(0.1)
            assert not follower.ended.is_set()
            await publish_metrics(store, PublishMetrics(later))
            await follower.ended.wait()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        metrics.close(pytest.fail)


@pytest.mark.parametrize("outcome", ["Succeeded", "Failed"])
async def test_an_end_that_was_taken_back_does_not_count_even_if_that_was_not_published(
    store: MemoryStore, tmp_path: Path, outcome: str
) -> None:
    await publish_metrics(store, PublishMetrics(end(1, outcome)))
    await follow_to_the_end(store, tmp_path, steps=2, later=end(2, "Succeeded"))


async def test_an_end_that_was_stored_before_this_run_does_not_end_it(
    store: MemoryStore, tmp_path: Path
) -> None:
    """The ledger may have lost it."""
    await publish_metrics(store, PublishMetrics(end(1, "Succeeded")))
    await follow_to_the_end(store, tmp_path, steps=1, later=end(1, "Succeeded"))
