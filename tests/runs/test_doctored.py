"""Copies of a finished run, each doctored in another way: the audit must not be fooled by any, nor cry wolf."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from doctored_run import copy_run, read_streams
from doctorings import DAMAGED, DOCTORINGS, HOLDS, UNFINISHED, VIOLATED
from e2e.harness.nats_server import EmbeddedServer
from example_job import write_job
from invocation import rljob

from rljob_core.ports import Channel, Message
from runs import LiveRun

# In one process, else each makes a run of its own.
pytestmark = [
    pytest.mark.smoke,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("doctored"),
]

EXIT_CODES = {HOLDS: 0, VIOLATED: 1, UNFINISHED: 3, DAMAGED: 4}
UNSEEN = {"same-rewards", "snapshots"}
"""Claims of which such a run leaves nothing to examine: tests/cli/test_audit.py has them."""
REWARD = """
def spread(*, completion, item):
    return len(completion) % 5 / 4
"""


@dataclass(frozen=True)
class Finished:
    """A finished run, the messages of its streams, and the server on which its doctored copies are stored."""

    output: Path
    streams: dict[Channel, list[Message]]
    url: str
    copies: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A job on emulated engines and an emulated trainer."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "spread.py").write_text(REWARD)
    manifest = write_job(
        folder,
        steps=6,
        data={"dataset": "chain_sum", "promptsPerStep": 4, "groupSize": 2},
        pipeline={"mode": "BoundedAsync", "maxStaleness": 2},
        evaluation={"data": {"dataset": "chain_sum"}, "samples": 4, "everySteps": 3},
        rollout={
            "engine": {"name": "Emulated"},
            "sampling": {"maxTokens": 6},
            "pools": [{"name": "cpu", "replicas": 1}],
        },
        reward={"functions": ["spread:spread"]},
        trainer={"backend": "Emulated", "options": {"stepSeconds": 0.2}},
    )
    output = folder / "run"
    run = LiveRun(manifest, output)
    try:
        assert run.wait() == 0, run.said
    finally:
        run.stop()
    identity = json.loads((output / "job.json").read_text())
    copies = tmp_path_factory.mktemp("copies")
    with asyncio.Runner() as runner:

        async def streams() -> dict[Channel, list[Message]]:
            async with EmbeddedServer(output / "nats") as server:
                return await read_streams(server.url, job=identity["name"], uid=identity["uid"])

        found = runner.run(streams())
        server = EmbeddedServer(copies / "nats")
        runner.run(server.__aenter__())
        try:
            yield Finished(output, found, server.url, copies)
        finally:
            runner.run(server.__aexit__(None, None, None))


@pytest.mark.parametrize("name", DOCTORINGS)
def test_the_audit_is_not_fooled(finished: Finished, name: str) -> None:
    doctoring = DOCTORINGS[name]
    copy = copy_run(
        finished.output, finished.streams, finished.copies / f"copy{list(DOCTORINGS).index(name)}"
    )
    doctoring.apply(copy)
    copy.publish(finished.url)
    ended = rljob("audit", copy.folder, "--json")
    found = json.loads(ended.out)
    seen = {check["name"]: {v["verdict"] for v in check["violations"]} for check in found["checks"]}
    assert found["verdict"] == doctoring.verdict, seen
    assert ended.code == EXIT_CODES[doctoring.verdict]
    assert doctoring.verdict in seen.get(doctoring.claim, {HOLDS})
    if name == "nothing":
        assert {check["name"] for check in found["checks"] if not check["examined"]} == UNSEEN


def test_a_ledger_whose_file_was_truncated(finished: Finished) -> None:
    copy = finished.copies / "truncated"
    shutil.copytree(finished.output, copy, symlinks=True, ignore=shutil.ignore_patterns("logs"))
    (block,) = copy.glob("nats/store/jetstream/*/streams/*_ledger/msgs/*.blk")
    os.truncate(block, block.stat().st_size // 2)
    ended = rljob("audit", copy)
    assert (ended.code, "verdict: unfinished" in ended.out) == (EXIT_CODES[UNFINISHED], True), ended.out
