"""Engines are killed or asked to stop while they generate long responses: others continue them, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from watcher import names_of

from rljob_cli.run_folder.embedded_nats import running_url
from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import Channel
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.nats.store import NatsStore
from runs import LiveRun, audit, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, PROMPTS, GROUP, EVERY = 3, 2, 4, 16
PODS = ("job-rollout-cpu-0", "job-rollout-cpu-1")


def endless(folder: Path) -> Path:
    """A model that knows no end of a response."""
    model = tiny_model(folder, context=1024)
    for name, key in (
        ("tokenizer_config.json", "eos_token"),
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
    ):
        file = model / name
        settings = json.loads(file.read_text())
        settings.pop(key, None)
        file.write_text(json.dumps(settings))
    return model


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LiveRun]:
    manifest = write_job(
        tmp_path,
        endless(tmp_path / "model"),
        steps=STEPS,
        data={"promptsPerStep": PROMPTS, "groupSize": GROUP},
        rollout={
            "engine": {"name": "Torch", "options": {"slots": 8, "threads": 1}},
            "sampling": {"maxTokens": 400},
            "progressTokens": EVERY,
        },
    )
    run = LiveRun(manifest, tmp_path / "run")
    yield run
    run.stop()


async def at_work(run: LiveRun) -> list[str]:
    """Pods that have published how far they have come with something that has not ended."""
    url = running_url(run.output / "nats")
    if url is None:
        return []
    names = names_of(run.output)
    store = NatsStore(url, subject=names.subject, stream_prefix=names.prefix, create=False)
    await store.open()
    try:
        trajectories = await store.suffixes(Channel.PROGRESS, ">")
        found = [await store.last(Channel.PROGRESS, trajectory) for trajectory in trajectories]
    finally:
        await store.close()
    engines = [wire.decode_verified(message.data)[0][0].engine for message in found if message is not None]
    return sorted({engine.rpartition(".")[0] for engine in engines})


def other(run: LiveRun, pod: str, pid: int) -> bool:
    """Whether another process has taken the place of a pod's."""
    return run.pids().get(pod, {}).get("pid", pid) != pid


def test_long_responses_survive_engines_that_are_killed_or_stopped(run: LiveRun) -> None:
    run.until("both engines", lambda: all(pod in run.pids() for pod in PODS))
    for kind in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        pods: list[str] = []
        while run.steps() < STEPS - 1 and not (pods := asyncio.run(at_work(run))):
            time.sleep(0.1)
        if not pods:
            break
        pid = run.pids()[pods[0]]["pid"]
        with suppress(ProcessLookupError):
            os.kill(pid, kind)
        # The other engine may bring the job to its end before this one's back-off is over.
        run.until(
            "another process",
            lambda pod=pods[0], pid=pid: other(run, pod, pid) or run.process.poll() is not None,
        )
    assert run.wait() == 0, run.said[-3000:] + run.logs()
    assert run.summary()["trajectories"]["consumed"] == STEPS * PROMPTS * GROUP
    verdict = audit(run.output, "--json")
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    counts = json.loads(verdict.stdout)["counts"]
    assert counts["resumed"] > 0
    assert counts["resumed_tokens"] >= counts["resumed"]
    assert not run.family()
