"""`rljob audit` on real files and a real nats-server, from what a job leaves there to the exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import xxhash
from pydantic import TypeAdapter
from story import Story, job
from typer.testing import CliRunner, Result

from rljob_cli.audit.read import read_folder
from rljob_cli.main import app
from rljob_cli.run_folder import Identity, RunFolder
from rljob_core.messages import REWARD_BATCH, RewardBatch
from rljob_core.ports import Channel, Manifest
from rljob_core.records import FED, Generated, RecordBatch, StepCommitted, encode_batch
from rljob_core.trajectory import Finish, Segment, Source, Trajectory, VersionSpan
from rljob_runtime import wire
from rljob_runtime.nats_server import EmbeddedServer
from rljob_runtime.nats_store import NatsStore
from rljob_runtime.trajectory_store import TrajectoryStore

UID = "0123"


def payload(trajectory: str, version: int) -> Trajectory:
    def segment(source: Source, tokens: list[int], version: int) -> Segment:
        return Segment(
            source,
            np.array(tokens, np.int32),
            np.full(len(tokens), source is Source.MODEL, np.uint8),
            np.zeros(len(tokens), np.float32),
            np.full(len(tokens), version, np.int32),
        )

    segments = [segment(Source.PROMPT, [1, 2, 3, 4], -1), segment(Source.MODEL, [5, 6, 7, 8], version)]
    return Trajectory(trajectory, 1, 0, segments, VersionSpan(version, version), Finish.STOP, "engine")


def seal_manifests(story: Story, weights: Path) -> None:
    """Write the manifests as the weight store does, and let the ledger name their true digests."""
    weights.mkdir(parents=True, exist_ok=True)
    sealed: dict[str, str] = {"": ""}
    for file in story.manifests:
        assert file.proposal is not None
        proposal = replace(file.proposal, parent=sealed[file.parent])
        manifest = Manifest(file.key, file.version, sealed[file.parent], (), proposal, "")
        content = TypeAdapter(Manifest).dump_python(manifest, mode="json")
        del content["digest"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        sealed[file.digest] = content["digest"] = xxhash.xxh3_128_hexdigest(canonical.encode())
        (weights / file.key).mkdir()
        (weights / file.key / "manifest.json").write_text(json.dumps(content))

    def rename(record: Any) -> Any:
        if not isinstance(record, StepCommitted):
            return record
        return replace(record, parent=sealed[record.parent], manifest=sealed[record.manifest])

    story.rewrite(rename)


@asynccontextmanager
async def streams(url: str) -> AsyncIterator[NatsStore]:
    store = NatsStore(url, subject=f"rljob.default.story.{UID}", stream_prefix=f"RLJOB_default_story_{UID}")
    await store.open()
    yield store
    await store.close()


async def publish(story: Story, url: str) -> None:
    async with streams(url) as store:
        for writer, records in story.ledger:
            await store.publish(Channel.LEDGER, "records", encode_batch(RecordBatch(writer, records)))
        await store.publish(
            Channel.REWARDS, "results", REWARD_BATCH.dump_json(RewardBatch(tuple(story.rewards)))
        )
        left = [payload(p.trajectory, p.span.min) for p in story.payloads]
        await TrajectoryStore(store).put(left)


def leave(story: Story, folder: RunFolder) -> None:
    """Everything in the story, where a run leaves it; the server is not started."""
    folder.claim(Identity("story", "default", UID, "model", "", {"spec": {"weights": {"uri": None}}}))
    digests = {p.trajectory: wire.digest(payload(p.trajectory, p.span.min)) for p in story.payloads}
    for trajectory, digest in digests.items():
        story.alter(Generated, lambda r, t=trajectory: r.trajectory == t, digest=digest)  # type: ignore[misc]
    story.rewards = [replace(r, payload_digest=digests[r.trajectory]) for r in story.rewards]
    seal_manifests(story, folder.weights)
    for line in story.fed:
        with (folder.trainer / f"attempt-{line.attempt}.jsonl").open("ab") as log:
            log.write(FED.dump_json(line) + b"\n")

    async def store() -> None:
        async with EmbeddedServer(folder.nats) as server:
            await publish(story, server.url)

    asyncio.run(store())


def audit(folder: RunFolder, *flags: str) -> Result:
    before = psutil.Process().children(recursive=True)
    result = CliRunner().invoke(app, ["audit", str(folder.path), *flags])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert psutil.Process().children(recursive=True) == before
    return result


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "out")


def test_reads_every_source_of_a_job_that_has_ended(folder: RunFolder) -> None:
    leave(job(), folder)
    result = audit(folder, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["verdict"] == "holds"
    assert all(check["examined"] for check in content["checks"])
    assert content["counts"] == {
        "planned": 14,
        "consumed": 12,
        "aborted": {},
        "open": 2,
        "versions": 3,
        "trainer_attempts": 1,
        "records": sum(len(records) for _, records in job().ledger),
        "records_of_fenced_writers": 0,
        "payloads_left": 2,
        "rewards_left": 2,
        "manifests": 3,
        "micro_batches_fed": 6,
        "finished": "",
    }
    assert "verdict: holds" in audit(folder).stdout


def test_a_ledger_rewritten_to_hide_a_double_consumption_exits_with_1(folder: RunFolder) -> None:
    story = job()
    hidden = [replace(item, trajectory=item.trajectory.replace("g5", "g3")) for item in story.fed[-1].items]
    story.fed[-1] = replace(story.fed[-1], items=tuple(hidden))
    leave(story, folder)
    result = audit(folder)
    assert result.exit_code == 1
    assert "✗ none was trained twice, by the trainer's own log" in result.stdout
    assert "g3.0 was trained in steps 1 and 2" in result.stdout
    assert "✗ none was trained twice, by the ledger" not in result.stdout


def test_reads_from_the_server_of_a_job_that_runs(folder: RunFolder) -> None:
    leave(job(), folder)

    async def while_it_runs() -> None:
        async with EmbeddedServer(folder.nats):
            evidence = await read_folder(folder)
            assert len(evidence.ledger) == len(job().ledger)
            assert sorted(p.trajectory for p in evidence.payloads) == ["g6.0", "g6.1"]

    with folder.locked():
        asyncio.run(while_it_runs())
        # A run that holds the folder without a server is starting or ending.
        result = audit(folder)
    assert result.exit_code == 2
    assert "try again in a few seconds" in result.stderr


def test_reads_from_the_users_own_server(folder: RunFolder, nats_server: EmbeddedServer) -> None:
    story = job()
    leave(story, folder)
    identity = folder.identity()
    assert identity is not None
    (folder.path / "job.json").write_text(json.dumps({**asdict(identity), "nats_url": nats_server.url}))
    asyncio.run(publish(story, nats_server.url))
    assert audit(folder).exit_code == 0


def test_damaged_files_are_named(folder: RunFolder) -> None:
    leave(job(), folder)
    (folder.weights / "v2-a1" / "manifest.json").write_text("{}")
    log = folder.trainer / "attempt-1.jsonl"
    log.write_bytes(log.read_bytes() + b'{"step": 9}\n' + b'{"cut off by a kill')
    content = json.loads(audit(folder, "--json").stdout)
    refuted = {check["name"]: check["violations"] for check in content["checks"] if not check["holds"]}
    assert set(refuted) == {"sources", "manifests"}
    told = [violation["text"] for violation in refuted["sources"]]
    assert len(told) == 2
    assert "v2-a1/manifest.json" in told[0]
    assert "attempt-1.jsonl, line 7" in told[1]


def test_an_altered_manifest_is_seen(folder: RunFolder) -> None:
    leave(job(), folder)
    manifest = folder.weights / "v2-a1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("g2.0", "g1.0"))
    content = json.loads(audit(folder, "--json").stdout)
    refuted = {check["name"] for check in content["checks"] if not check["holds"]}
    assert refuted == {"manifests", "once-by-manifests"}


def test_a_folder_without_streams(folder: RunFolder) -> None:
    folder.claim(Identity("story", "default", UID, "model", "", {"spec": {"weights": {"uri": None}}}))
    result = audit(folder)
    assert result.exit_code == 2
    assert "holds no streams" in result.stderr
