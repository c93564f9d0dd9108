"""A whole job on three nats-servers, to which one thing after the other happens while it trains: it goes on after each.

Its streams have a replica on each server. At the end every step is there, and audit and replay are clean. How long
no step was committed at each fault is printed, with the leader's change in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from block_device import Disk
from cluster_faults import FAULTS, Fault, leaders_disk_full, upgraded_in_turn
from faulty_run import Say
from nats_cluster import SIZE, NatsCluster
from tests.emulated import emulated
from tests.night import NIGHT, chance
from watcher import names_of

from rljob_core.ports import Channel
from runs import LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

#: `make nightly` has 64 in a run.
COUNT = 64 if NIGHT else 5


def drawn() -> list[Fault]:
    """First the upgrade, then a full disk and others: each once before one comes again."""
    order = chance("faults of three servers")
    faults = [leaders_disk_full]
    while len(faults) < COUNT - 1:
        faults += order.sample(FAULTS, len(FAULTS))
    faults = faults[: COUNT - 1]
    order.shuffle(faults)
    return [upgraded_in_turn, *faults]


@pytest.fixture
async def cluster(
    tmp_path: Path, disk_at: Callable[[Path], Disk], older_nats_server: Path
) -> AsyncIterator[NatsCluster]:
    """Three servers of an older release, each on a disk of its own."""
    async with NatsCluster(tmp_path, prepare=disk_at, program=older_nats_server) as running:
        yield running


@pytest.fixture
def live(cluster: NatsCluster, model: Path, tmp_path: Path) -> Iterator[LiveRun]:
    """A job on the three servers that goes on until its number of steps is changed."""
    folder = tmp_path / "job"
    folder.mkdir()
    nats = {"url": ",".join(cluster.urls), "replicas": SIZE}
    manifest = write_job(
        folder, model, steps=100_000, nats=nats, backoffLimit=1000, **emulated(step_seconds=0.3)
    )
    run = LiveRun(manifest, folder / "run", "--record")
    yield run
    run.stop()


async def test_a_job_outlives_what_happens_to_its_servers(
    cluster: NatsCluster, live: LiveRun, say: Say
) -> None:
    await asyncio.to_thread(live.until, "step 2", lambda: live.steps() >= 2)
    ledger = names_of(live.output).stream(Channel.LEDGER)
    for number, fault in enumerate(drawn(), 1):
        leader = await cluster.leader(ledger)
        began = time.monotonic()
        async with pauses(live) as longest:
            await fault(cluster, ledger, leader)
            goal = live.steps() + 2
            await asyncio.to_thread(
                live.until, f"steps after {fault.__name__}", lambda goal=goal: live.steps() >= goal
            )
        took = f"{time.monotonic() - began:5.1f} s, no step for {max(longest):4.1f} s"
        say(f"  {number:2}/{COUNT}  {fault.__name__:<28} {took}, then at step {live.steps()}")
    steps = live.steps() + 10
    live.patch(f"steps={steps}")
    assert await asyncio.to_thread(live.wait) == 0, live.said[-3000:] + live.logs()
    assert live.summary()["steps"] == steps
    await asyncio.to_thread(live.check_audit)
    live.check_replay()


@asynccontextmanager
async def pauses(live: LiveRun) -> AsyncIterator[list[float]]:
    """Seconds between steps meanwhile."""
    found = [0.0]

    async def look() -> None:
        steps, since = live.steps(), time.monotonic()
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            found[-1] = now - since
            if (done := live.steps()) > steps:
                found.append(0.0)
                steps, since = done, now

    looking = asyncio.create_task(look())
    try:
        yield found
    finally:
        looking.cancel()
