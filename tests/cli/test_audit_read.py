"""`rljob audit` on real files and a real nats-server, from what a job leaves there to the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from evidence_builder import Entry, job
from evidence_files import IDENTITY, SPEC, UID, payload, publish, streams, write_run
from invocation import children
from tests.memory.store import MemoryServer, MemoryStore
from typer.testing import CliRunner, Result

from rljob_cli.audit import audit as check
from rljob_cli.audit import read
from rljob_cli.audit.ending import report
from rljob_cli.audit.evidence import Evidence, Verdict
from rljob_cli.audit.read import read_folder, read_folder_served
from rljob_cli.audit.streams import payloads_left, reward_results
from rljob_cli.audit.table import EXIT_CODES, EXIT_NOT_AUDITED, exit_code
from rljob_cli.commands import app
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.messages import MARK, MARK_HEADER, REWARD_BATCH, RewardBatch, RewardResult
from rljob_core.ports import MESSAGE_ID, Channel, Message, first_sequence
from rljob_core.records import (
    EpochClaimed,
    GroupAborted,
    Writer,
)
from rljob_runtime.messaging import ledger
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.reward_results import result_digest
from rljob_runtime.messaging.trajectories import TrajectoryStore


def audit(folder: RunFolder, *flags: str) -> Result:
    before = children()
    result = CliRunner().invoke(app, ["audit", str(folder.path), *flags])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert not children() - before
    return result


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "out")


def test_reads_every_source_of_a_job_that_has_ended(folder: RunFolder) -> None:
    write_run(job(), folder)
    result = audit(folder, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["verdict"] == "holds"
    elsewhere = {"unaltered", "summary", "evaluations"}  # of whole runs: tests/runs/test_doctored.py
    assert all(check["examined"] for check in content["checks"] if check["name"] not in elsewhere)
    (pipeline,) = content["counts"].pop("pipelines")
    assert (pipeline["from_step"], pipeline["mode"], pipeline["max_staleness"]) == (0, "BoundedAsync", 1)
    assert content["counts"] == {
        "planned": 14,
        "consumed": 12,
        "aborted": {},
        "unsent_prompts": [],
        "unscored_answers": [],
        "open": 2,
        "versions": 3,
        "versions_restored": 0,
        "versions_revoked": 0,
        "trainer_attempts": 1,
        "records": len(list(job().records())),
        "records_of_fenced_writers": 0,
        "messages_out_of_chain": 0,
        "snapshots": 1,
        "resumed": 0,
        "resumed_tokens": 0,
        "payloads_left": 2,
        "rewards_left": 2,
        "manifests": 3,
        "micro_batches_fed": 6,
        "finished": "",
    }
    assert "verdict: holds" in audit(folder).stdout


def test_a_ledger_rewritten_to_hide_a_double_consumption_exits_with_1(folder: RunFolder) -> None:
    evidence_builder = job()
    hidden = [
        replace(item, trajectory=item.trajectory.replace("g5", "g3"))
        for item in evidence_builder.fed[-1].items
    ]
    evidence_builder.fed[-1] = replace(evidence_builder.fed[-1], items=tuple(hidden))
    write_run(evidence_builder, folder)
    result = audit(folder)
    assert result.exit_code == 1
    assert "✗ none was trained twice, by the trainer's own log" in result.stdout
    assert "g3.0 was trained in steps 1 and 2" in result.stdout
    assert "✗ none was trained twice, by the ledger" not in result.stdout


def test_reads_from_the_server_of_a_job_that_runs(folder: RunFolder) -> None:
    write_run(job(), folder)

    async def while_it_runs() -> None:
        async with EmbeddedServer(folder.nats):
            evidence = await read_folder(folder)
            assert len(evidence.ledger) == len(job().ledger) + 1  # its snapshot has two parts
            assert sorted(p.trajectory for p in evidence.payloads) == ["g6.0", "g6.1"]

    with folder.locked():
        asyncio.run(while_it_runs())
        # A run that holds the folder without a server is starting or ending.
        result = audit(folder)
    assert result.exit_code == EXIT_NOT_AUDITED
    assert "try again in a few seconds" in result.stderr


def test_reads_from_the_users_own_server(folder: RunFolder, nats_server: EmbeddedServer) -> None:
    evidence_builder = job()
    write_run(evidence_builder, folder)
    identity = folder.identity()
    assert identity is not None
    (folder.path / "job.json").write_text(json.dumps({**asdict(identity), "nats_url": nats_server.url}))
    asyncio.run(publish(evidence_builder, nats_server.url))
    assert audit(folder).exit_code == 0


def test_nothing_is_created_on_the_users_own_server(folder: RunFolder, nats_server: EmbeddedServer) -> None:
    write_run(job(), folder)
    identity = folder.identity()
    assert identity is not None
    other = replace(identity, uid=uuid.uuid4().hex, nats_url=nats_server.url)
    (folder.path / "job.json").write_text(json.dumps(asdict(other)))
    assert audit(folder).exit_code == EXIT_CODES[Verdict.DAMAGED]

    async def found() -> list[str]:
        client = await nats.connect(nats_server.url)
        try:
            return [info.config.name for info in await client.jetstream().streams_info()]
        finally:
            await client.close()

    assert not [name for name in asyncio.run(found()) if other.uid in name]


def test_streams_that_do_not_load_are_damage_and_named_at_once(folder: RunFolder) -> None:
    write_run(job(), folder)
    (streams,) = folder.nats.glob("store/jetstream/*/streams")
    place = {channel: next(streams.glob(f"*_{channel.value}")) for channel in Channel}
    (place[Channel.LEDGER] / "meta.inf").write_bytes(b"")
    (place[Channel.METRICS] / "meta.inf").write_bytes(b"{")
    (place[Channel.EVENTS] / "meta.sum").unlink()
    shutil.rmtree(place[Channel.VERSIONS])
    began = time.monotonic()
    result = audit(folder, "--json")
    assert time.monotonic() - began < read.PATIENCE_SECONDS
    assert result.exit_code == EXIT_CODES[Verdict.DAMAGED]
    (sources, *_) = json.loads(result.stdout)["checks"]
    said = " ".join(violation["text"] for violation in sources["violations"])
    for channel, why in {
        Channel.LEDGER: "meta.inf, which describes it, is empty",
        Channel.METRICS: "meta.inf, which describes it, is damaged",
        Channel.EVENTS: "meta.sum, which describes it, is gone",
        Channel.VERSIONS: "its folder is gone",
    }.items():
        assert f"the stream {place[channel].name} does not load: {why}" in said
    assert place[Channel.REWARDS].name not in said


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_evidence_that_cannot_be_written_is_read_in_a_copy(folder: RunFolder) -> None:
    write_run(job(), folder)
    found = [folder.path, *folder.path.rglob("*")]
    for path in found:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat().st_mtime_ns for path in found}
    try:
        assert audit(folder).exit_code == 0
        assert {path: path.stat().st_mtime_ns for path in found} == before
    finally:
        for path in found:
            path.chmod(0o755)


def test_damaged_files_are_named(folder: RunFolder) -> None:
    write_run(job(), folder)
    (folder.weights / "v2-a1" / "manifest.json").write_text("{}")
    log = folder.trainer / "attempt-1.jsonl"
    log.write_bytes(log.read_bytes() + b'{"step": 9}\n' + b'{"cut off by a kill')
    content = json.loads(audit(folder, "--json").stdout)
    refuted = {check["name"]: check["violations"] for check in content["checks"] if not check["holds"]}
    assert set(refuted) == {"sources", "manifests"}
    said = [violation["text"] for violation in refuted["sources"]]
    assert len(said) == 2
    assert "the manifest of v2-a1" in said[0]
    assert "attempt-1.jsonl, line 7" in said[1]


def test_what_is_no_file_or_too_deep_is_named(folder: RunFolder) -> None:
    write_run(job(), folder)
    configuration = folder.path / "pods" / "engine-0" / "volumes" / "config" / "config.json"
    configuration.parent.mkdir(parents=True)
    os.mkfifo(configuration)
    (folder.trainer / "attempt-2.jsonl").mkdir()
    (folder.trainer / "attempt-3\udcff.jsonl").write_bytes(b"{}\n")
    folder.summary.write_text("[" * 100_000)
    (said,) = refutations(folder).values()
    for named in (
        "config.json is no regular file",
        "attempt-2.jsonl is no",
        "attempt-3\udcff",
        "summary.json",
    ):
        assert named in " ".join(said)


def test_a_spec_in_job_json_that_is_none_is_damage(folder: RunFolder) -> None:
    write_run(job(), folder)
    folder.write(replace(IDENTITY, manifest={"spec": {"weights": 3}}))
    assert set(refutations(folder)) == {"sources"}


def test_the_task_is_part_of_the_spec_and_its_place_is_not(folder: RunFolder) -> None:
    write_run(job(), folder)
    for changed, refuted in ({"dataset": "leg_counting"}, {"specs"}), ({"source": "jsonl"}, {"specs"}):
        folder.write(replace(IDENTITY, manifest={"spec": {**SPEC, "data": {**SPEC["data"], **changed}}}))
        assert set(refutations(folder)) == refuted
    folder.write(
        replace(IDENTITY, manifest={"spec": {**SPEC, "model": {**SPEC["model"], "uri": "elsewhere"}}})
    )
    assert refutations(folder) == {}


@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_does_not_depend_on_who_reads_the_findings(as_json: bool) -> None:
    holds, damaged = (check(replace(job().evidence(), unreadable=texts)) for texts in ((), ("half \ud800",)))
    for findings, code in (holds, 0), (damaged, EXIT_CODES[Verdict.DAMAGED]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w", encoding="ascii") as broken, redirect_stdout(broken):
            assert report(findings, as_json=as_json) == code
        with redirect_stdout(None):
            assert report(findings, as_json=as_json) == code
        with TextIOWrapper(BytesIO(), encoding="ascii") as plain, redirect_stdout(plain):
            assert report(findings, as_json=as_json) == code


def test_an_altered_manifest_is_seen(folder: RunFolder) -> None:
    write_run(job(), folder)
    manifest = folder.weights / "v2-a1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("g2.0", "g1.0"))
    content = json.loads(audit(folder, "--json").stdout)
    refuted = {check["name"] for check in content["checks"] if not check["holds"]}
    assert refuted == {"manifests", "once-by-manifests"}


def refutations(folder: RunFolder) -> dict[str, list[str]]:
    content = json.loads(audit(folder, "--json").stdout)
    return {c["name"]: [v["text"] for v in c["violations"]] for c in content["checks"] if not c["holds"]}


def test_messages_that_name_another_one_before_them_do_not_count_until_the_next_claim(
    folder: RunFolder,
) -> None:
    evidence_builder = job()
    zombie = evidence_builder.writer
    for record in (GroupAborted("g0", "Astray"), GroupAborted("g1", "Astray")):
        evidence_builder.ledger.append(Entry(zombie, (record,), counts=record.group != "g0"))
    evidence_builder.coordinator(2, "two")
    evidence_builder.trainer(2)
    write_run(evidence_builder, folder)
    assert refutations(folder) == {}
    content = json.loads(audit(folder, "--json").stdout)
    assert content["counts"]["messages_out_of_chain"] == 2


def damage(folder: RunFolder, change: Callable[[NatsStore], Awaitable[Any]]) -> None:
    async def store() -> None:
        async with EmbeddedServer(folder.nats) as server, streams(server.url) as opened:
            await change(opened)

    asyncio.run(store())


def after(identity: str, suffix: str, data: bytes) -> Callable[[NatsStore], Awaitable[int]]:
    """Append a message to the newest, which has no id of the duplicate window by now."""

    async def change(store: NatsStore) -> int:
        newest = await store.last(Channel.LEDGER)
        assert newest is not None
        digest = ledger.chain_digest(newest.headers[ledger.CHAIN_DIGEST], identity, suffix, data)
        headers = {"Rljob-After": newest.headers[MESSAGE_ID], ledger.CHAIN_DIGEST: digest}
        return await store.publish(Channel.LEDGER, suffix, data, headers=headers, message_id=identity)

    return change


def test_a_corrupt_record_is_named_by_its_sequence(folder: RunFolder) -> None:
    write_run(job(), folder)
    damage(folder, after("x", ledger.RECORDS, b'{"writer": {}}'))
    at = len(job().ledger) + 2
    said = refutations(folder)
    assert set(said) == {"sources"}
    assert f"message {at} of the ledger is not a batch of records" in said["sources"][0]


def test_a_ledger_of_another_release_is_named(folder: RunFolder) -> None:
    write_run(job(), folder)
    damage(
        folder,
        after(
            "x", ledger.RECORDS, b'{"writer": {"number": 1, "instance": "one"}, "records": [], "version": 9}'
        ),
    )
    damage(folder, after("y", "summary", b"of another kind"))
    said = refutations(folder)
    assert set(said) == {"sources"}
    assert all("written by another release of rljob" in text for text in said["sources"])
    assert len(said["sources"]) == 2


def test_a_mark_among_the_rewards_is_no_damage_and_what_is_neither_is(folder: RunFolder) -> None:
    write_run(job(), folder)
    mark = {MARK_HEADER: "one/1"}
    damage(folder, lambda store: store.publish(Channel.REWARDS, MARK, b"", headers=mark))
    assert refutations(folder) == {}
    damage(folder, lambda store: store.publish(Channel.REWARDS, "results", b""))
    said = refutations(folder)
    assert set(said) == {"sources"}
    assert said["sources"][0].startswith("reward message 3 does not decode")


def test_an_altered_score_is_damage() -> None:
    score = RewardResult("g1.0", 1, "digest", 1.0, {"right": 1.0}, "")
    sealed = replace(score, digest=result_digest(score))
    for result, damaged in (sealed, False), (replace(sealed, parts={"right": 0.0}), True):
        unreadable: list[str] = []
        message = Message(1, "results", REWARD_BATCH.dump_json(RewardBatch((result,))))
        assert list(reward_results([message], unreadable)) == [result]
        assert unreadable == ["the stored score of g1.0 does not match its digest"] * damaged


def test_a_snapshot_without_its_first_part(folder: RunFolder) -> None:
    evidence_builder = job()
    evidence_builder.snapshot()
    write_run(evidence_builder, folder)
    part = len(job().ledger) + 2

    async def remove(store: NatsStore) -> None:
        await store.delete(Channel.LEDGER, [part])

    damage(folder, remove)
    said = refutations(folder)
    assert said["sources"][0].startswith(f"the snapshot in message {part + 1} of the ledger lacks a part")
    assert said["sources"][1] == "is gone from the ledger"


def test_the_ledger_of_another_job(folder: RunFolder) -> None:
    evidence_builder = job()
    evidence_builder.alter(EpochClaimed, lambda r: True, job="another")
    write_run(evidence_builder, folder)
    said = refutations(folder)
    assert said["sources"] == [f"of the ledger is of the job another, not of {UID}"]


@pytest.mark.parametrize(
    ("former", "says"), [("former", []), ("third", ["of the ledger is of the job former, not of third"])]
)
def test_the_ledger_of_a_job_that_was_restored_as_another(
    folder: RunFolder, former: str, says: list[str]
) -> None:
    evidence_builder = job()
    evidence_builder.alter(EpochClaimed, lambda r: True, job="former")
    number = evidence_builder.writer.number + 1
    evidence_builder.writer = Writer(number, "restore")
    evidence_builder.write(EpochClaimed(number, "restore", UID, former=former))
    write_run(evidence_builder, folder)
    # The snapshots still name the job of the builder, of which the audit says so elsewhere.
    assert refutations(folder).get("sources", []) == says


class Dying(MemoryStore):
    """Its server dies once, after the payloads' headers were read, and loses the newest messages."""

    server: MemoryServer
    lost: int | None = None

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Any]:
        if self.lost is not None and channel is Channel.TRAJECTORIES:
            last, self.lost = self.lost, None
            self.server.job("job").cut(Channel.TRAJECTORIES, last)
            await TrajectoryStore(self).put([payload("g9.0", 4)])
        return await super().get(channel, sequences)


async def test_a_payload_that_is_lost_while_the_audit_reads_is_no_damage_nor_is_what_takes_its_place() -> (
    None
):
    server = MemoryServer()
    store = Dying(server, subject="job")
    store.server = server
    await store.open()
    for number in range(3):
        await TrajectoryStore(store).put([payload(f"g{number}.0", 3)])
    first = first_sequence(Channel.TRAJECTORIES)
    store.lost = first
    unreadable: list[str] = []
    left = await payloads_left(store, unreadable)
    assert [(p.trajectory, p.sequence, p.intact) for p in left] == [("g0.0", first, True)]
    again = await payloads_left(store, unreadable)
    assert [(p.trajectory, p.sequence, p.intact) for p in again] == [
        ("g0.0", first, True),
        ("g9.0", first + 1, True),
    ]
    assert unreadable == []
    await store.close()


@pytest.mark.parametrize(("mounted", "code"), [(True, 0), (False, 5)])
def test_a_claim_of_weights_that_this_machine_lacks_is_not_read_as_an_empty_one(
    folder: RunFolder, tmp_path: Path, *, mounted: bool, code: int
) -> None:
    write_run(job(), folder)
    mirror = RunFolder(tmp_path / "mirror")
    mirror.path.mkdir()
    mirror.write(replace(IDENTITY, mirrors=True))
    config = {
        "namespace": IDENTITY.namespace,
        "job": IDENTITY.name,
        "uid": UID,
        "spec": SPEC,
        "weights_uri": str(folder.weights if mounted else tmp_path / "mnt" / "weights"),
        "checkpoint_uri": str(folder.path),
        "trainer_log_uri": str(folder.trainer),
    }
    mirror.workers_config.write_text(json.dumps(config))

    async def evidence() -> Evidence:
        async with EmbeddedServer(folder.nats) as server:
            return await read_folder_served(mirror, server.url)

    findings = check(asyncio.run(evidence()))
    assert (findings.holds, exit_code(findings)) == (True, code)


def test_a_folder_without_streams(folder: RunFolder) -> None:
    folder.claim(IDENTITY)
    result = audit(folder)
    assert result.exit_code == 2
    assert "holds no streams" in result.stderr
