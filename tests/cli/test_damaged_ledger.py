"""A ledger that this job has not written: `rljob run --resume` and `rljob audit` say what it is, and what to do."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from e2e.harness.nats_server import EmbeddedServer
from evidence_builder import EvidenceBuilder, job
from evidence_streams import append, seal
from example_job import write_job
from invocation import children, claimed, refused, rljob

from rljob_cli.run.resume import lost_since_its_end
from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.run_folder.streams import UNKNOWN_DAMAGE
from rljob_core.failures import ADVICE, Reason
from rljob_core.ports import MESSAGE_ID, Channel, MessageStore
from rljob_core.records import EpochClaimed, SpecInForce
from rljob_core.spec import RLJobSpec
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.ledger import CHAIN_DIGEST, RECORDS, chain_digest
from rljob_runtime.messaging.nats.store import NatsStore

EMULATED = {
    "rollout": {
        "engine": {"name": "Emulated"},
        "sampling": {"maxTokens": 6},
        "pools": [{"name": "cpu", "replicas": 1}],
    },
    "trainer": {"backend": "Emulated"},
}


async def write(data: bytes, store: MessageStore) -> None:
    newest = await store.last(Channel.LEDGER)
    assert newest is not None
    name = uuid4().hex
    digest = chain_digest(newest.headers[CHAIN_DIGEST], name, RECORDS, data)
    headers = {"Rljob-After": newest.headers[MESSAGE_ID], CHAIN_DIGEST: digest}
    await store.publish(Channel.LEDGER, RECORDS, data, headers=headers, message_id=name)


def leave(folder: RunFolder, evidence_builder: EvidenceBuilder, *last: bytes) -> None:
    names = StreamNames.of_job(namespace="default", job="sums", uid="0123")
    identity = folder.identity()
    assert identity is not None
    spec = SpecInForce(
        RLJobSpec.model_validate(identity.manifest["spec"]).model_dump(mode="json", by_alias=True)
    )
    evidence_builder.rewrite(lambda record: spec if isinstance(record, SpecInForce) else record)
    seal(evidence_builder, lambda file, _: file.digest)

    async def store() -> None:
        async with EmbeddedServer(folder.nats) as server:
            streams = NatsStore(server.url, subject=names.subject, stream_prefix=names.prefix)
            await streams.open()
            await append(streams, evidence_builder)
            for data in last:
                await write(data, streams)
            await streams.close()

    asyncio.run(store())


def of_another_job(evidence_builder: EvidenceBuilder) -> list[bytes]:
    evidence_builder.ledger = [
        entry for entry in evidence_builder.ledger if entry.snapshot is None
    ]  # it would be of that job, too
    evidence_builder.alter(EpochClaimed, lambda r: True, job="another")
    return []


def of_another_release(evidence_builder: EvidenceBuilder) -> list[bytes]:
    return [b'{"writer": {"number": 1, "instance": "one"}, "records": [], "version": 9}']


def damaged_in_the_middle(evidence_builder: EvidenceBuilder) -> list[bytes]:
    return [b"\x00\x01", b'{"writer": {"number": 1, "instance": "one"}, "records": [], "version": 1}']


def found_by_the_audit(folder: RunFolder) -> list[str]:
    verdict = json.loads(rljob("audit", folder.path, "--json").out)
    assert verdict["verdict"] == "damaged"
    sources = next(check for check in verdict["checks"] if check["name"] == "sources")
    return [violation["text"] for violation in sources["violations"]]


def test_a_running_job_ends_with_the_message_and_so_do_all_its_processes(tmp_path: Path) -> None:
    file = write_job(tmp_path, **EMULATED)
    folder = claimed(file, spec=EMULATED)
    evidence_builder = job()
    last = damaged_in_the_middle(evidence_builder)
    leave(folder, evidence_builder, *last)
    before = children()
    ended = rljob("run", file, "--output", folder.path, "--resume")
    assert ended.code == 1, ended
    (error,) = [line for line in ended.errors if line.startswith("error: ")]
    assert (
        f"message {len(evidence_builder.ledger) + 2} of the ledger is not a batch of records (Invalid JSON"
        in error
    )
    assert "restore the stream from a copy" in error
    assert not children() - before
    assert "is not a batch of records" in found_by_the_audit(folder)[0]


@pytest.mark.parametrize(
    ("damage", "what", "remedy"),
    [
        (of_another_job, "is of the job another, not of 0123", "name this job's own output folder"),
        (of_another_release, "was written by another release of rljob", "use that one"),
        (damaged_in_the_middle, "is not a batch of records", "restore the stream from a copy"),
    ],
)
def test_nobody_goes_back_in_it(
    tmp_path: Path, damage: Callable[[EvidenceBuilder], list[bytes]], what: str, remedy: str
) -> None:
    file = write_job(tmp_path, **EMULATED)
    folder = claimed(file, spec=EMULATED)
    evidence_builder = job()
    last = damage(evidence_builder)
    leave(folder, evidence_builder, *last)
    ended = rljob("run", file, "--output", folder.path, "--resume", "--from-version", "1")
    assert ended.code == 1, ended
    error, *said = ended.errors
    assert what in error
    assert remedy in error
    assert [line.partition(": ")[0] for line in said] == ["at fault", "to do", "to continue"]
    assert said[0] == f"at fault: {ADVICE[Reason.LEDGER_DAMAGED].at_fault}"
    assert said[2].endswith(" --resume --from-version 1")  # it has not gone back
    assert what in found_by_the_audit(folder)[0]


def test_a_finished_run_that_lost_its_end_or_a_stream_is_to_be_continued(tmp_path: Path) -> None:
    folder = claimed(write_job(tmp_path, **EMULATED), spec=EMULATED)
    identity = folder.identity()
    assert identity is not None
    names = StreamNames.of_job(namespace="default", job="sums", uid="0123")
    evidence_builder = job()
    leave(folder, evidence_builder)
    ledger = names.stream(Channel.LEDGER)
    steps = evidence_builder.version
    assert lost_since_its_end(folder, identity, steps) == {
        ledger: "it has lost its end, with that of the job"
    }
    shutil.rmtree(folder.nats)
    evidence_builder.finish()
    leave(folder, evidence_builder)
    assert lost_since_its_end(folder, identity, steps) == {}
    metrics, rewards = (
        next(folder.nats.rglob(names.stream(channel))) for channel in (Channel.METRICS, Channel.REWARDS)
    )
    for name in ("meta.inf", "meta.sum"):
        shutil.copy(rewards / name, metrics / name)
    assert lost_since_its_end(folder, identity, steps) == {names.stream(Channel.METRICS): UNKNOWN_DAMAGE}


def test_rollback_is_for_a_resumed_run(tmp_path: Path) -> None:
    file = write_job(tmp_path, **EMULATED)
    assert refused(file, "--from-version", "1") == [
        "--from-version: goes back in a run that exists: add --resume"
    ]
