"""A full trajectory stream makes engines wait; no trajectory is dropped, and the job continues."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import nats
import pytest
from faulty_run import FaultyRun
from nats.js.api import StreamInfo
from observed_messages import Sighting
from tests.emulated import emulated
from watcher import names_of

from rljob_cli.run_folder.embedded_nats import running_url
from rljob_core.ports import Channel
from rljob_runtime.messaging.summaries import PayloadSummary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def limit(run: FaultyRun, max_bytes: int | None = None) -> StreamInfo:
    """The trajectory stream, after its limit was set."""

    async def change() -> StreamInfo:
        url = running_url(run.output / "nats")
        assert url is not None
        client = await nats.connect(url)
        try:
            context = client.jetstream()
            info = await context.stream_info(names_of(run.output).stream(Channel.TRAJECTORIES))
            if max_bytes is not None:
                info = await context.update_stream(info.config, max_bytes=max_bytes)
            return info
        finally:
            await client.close()

    return asyncio.run(change())


def test_a_full_stream_holds_back_and_loses_nothing(start: Callable[..., FaultyRun]) -> None:
    run = start(
        "stream full",
        steps=80,
        pipeline={"maxStaleness": 2},
        **emulated(step_seconds=0.3, decode_seconds=0.005),
    )
    run.watch(2)
    put: Counter[tuple[str, int]] = Counter()

    def count(said: Sighting) -> bool:
        if isinstance(said, PayloadSummary):
            put[said.trajectory, said.attempt] += 1
        return False

    def refused() -> int:
        """Payloads that their engine had to send again."""
        return sum(times > 1 for times in dict(put).values())

    run.seen.wait_for(count)
    ample = limit(run).config.max_bytes
    assert ample is not None
    for _ in range(3):
        known = refused()
        limit(run, max_bytes=1)
        run.until("payloads that found it full", lambda known=known: refused() > known)
        # It is full with what it holds; only what the trainer consumes makes room.
        limit(run, max_bytes=max(1, limit(run).state.bytes))
        time.sleep(2.0)
        run.say(f"step {run.seen.seen.committed}: {refused()} payloads have found it full so far")
        limit(run, max_bytes=ample)
        reached = run.seen.seen.committed
        run.until("a step with room again", lambda reached=reached: run.seen.seen.committed > reached)

    limit(run, max_bytes=1)
    stopped = refused()
    run.until("no room at all", lambda: refused() > stopped)

    def all_wait() -> bool:
        reached = run.seen.seen.committed
        time.sleep(3.0)
        return run.seen.seen.committed == reached

    # What is stored is trained yet. Were steps trained of payloads that cannot be stored, the job would end here.
    run.until("a job in which all wait", all_wait)
    reached = run.seen.seen.committed
    run.say(f"step {reached}: no room, all wait")
    engine, pid = run.victim("rollout")
    os.kill(pid, signal.SIGKILL)  # with what it could not put
    run.until("another engine", lambda: run.replaced({engine: pid}))
    coordinator, pid = run.victim("coordinator")
    os.kill(pid, signal.SIGKILL)  # the next one sees to it that there is room
    run.until_back({coordinator: pid})
    run.until("room again", lambda: limit(run).config.max_bytes == ample)
    run.finish()
