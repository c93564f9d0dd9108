"""A rollback revokes later versions, keeps the others, and changes nothing if it is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_builder import JOB, EvidenceBuilder, job
from evidence_streams import append, seal
from world import job_config

from rljob_cli.audit import audit
from rljob_cli.audit.evidence import Evidence, ManifestFile
from rljob_cli.audit.read import collect
from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import CorruptLedger, SpecError
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import JobState
from rljob_core.messages import STEP_METRICS, VERSION_ANNOUNCED
from rljob_core.ports import Channel
from rljob_core.records import FED, CheckpointSaved, GroupAborted, JobFinished, StepCommitted
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.memory.store import MemoryServer, MemoryStore
from rljob_runtime.roles.offline_rollback import Reopened, RolledBack, reopen, roll_back
from rljob_runtime.roles.recovery_sources import intact_versions_before
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.weights.create import open_store, open_transport

CONFIG = job_config().model_copy(update={"uid": JOB})


class Place:
    """What a job that does not run has left: three versions, checkpoints after the first two."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.server = MemoryServer()
        self.store = MemoryStore(self.server, subject="job")
        self.weights = open_store("Files", uri=str(folder / "weights"))
        self.checkpoints = CheckpointStore(str(folder / "checkpoints"), model_path=model)

    async def leave(self, evidence_builder: EvidenceBuilder) -> None:
        def write(file: ManifestFile, proposal: StepCommitted) -> str:
            written = self.weights.write(
                version=file.version,
                parent=proposal.parent,
                proposal=proposal,
                key=file.key,
                tensors=[("steps", np.full(4, file.version, np.float32))],
            )
            if file.version < 3:
                self.checkpoints.write(version=file.version, manifest="", attempt=1, save=lambda _: None)
            return written.digest

        for number, file in enumerate(evidence_builder.manifests):
            assert file.proposal is not None
            proposal = replace(file.proposal, key=key(file.version))
            evidence_builder.manifests[number] = replace(file, key=key(file.version), proposal=proposal)
        seal(evidence_builder, write)
        log = self.folder / "trainer" / "attempt-1.jsonl"
        log.parent.mkdir()
        log.write_bytes(b"".join(FED.dump_json(line) + b"\n" for line in evidence_builder.fed))
        await self.store.open()
        await append(self.store, evidence_builder)

    async def back_to(self, version: int) -> RolledBack:
        return await roll_back(
            CONFIG, self.store, self.weights, self.checkpoints, version=version, instance="rljob-run.x"
        )

    async def reopen(self, *, steps: int = CONFIG.spec.steps) -> Reopened | None:
        config = CONFIG.model_copy(update={"spec": CONFIG.spec.model_copy(update={"steps": steps})})
        return await reopen(config, self.store, self.weights, self.checkpoints, instance="rljob-run.x")

    async def state(self) -> JobState:
        return await Ledger(self.store, job=JOB, instance="reader").replay()

    async def evidence(self) -> Evidence:
        store = MemoryStore(self.server, subject="job")
        transport = open_transport("Files", uri=str(self.folder / "weights"))
        return await collect(store, transport, job=JOB, trainer=self.folder / "trainer")

    def damage(self, version: int) -> None:
        path = self.folder / "weights" / key(version) / "weights.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")


def key(version: int) -> str:
    return f"v{version:08d}-a1"


def job_with_checkpoints() -> EvidenceBuilder:
    evidence_builder = job()
    evidence_builder.write(CheckpointSaved(1, 1, "step-000001"), CheckpointSaved(2, 1, "step-000002"))
    return evidence_builder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def place(tmp_path: Path, model: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path, model)
    yield place
    await place.store.close()


async def test_later_versions_are_revoked_and_nothing_of_them_is_left(place: Place):
    await place.leave(job_with_checkpoints())
    assert await place.back_to(1) == RolledBack(1, revoked=2, trajectories=8, optimizer=1)
    state = await place.state()
    assert (state.version, state.commit.key, state.next_prompt, dict(state.groups)) == (1, key(1), 7, {})
    assert (state.writer.count, state.writer.instance) == (1, "rljob-run.x")
    assert state.aborted == {"VersionRevoked": 10}
    assert state.checkpoint is not None
    assert (state.checkpoint.version, state.checkpoint.key) == (1, "step-000001")
    announced = await place.store.last(Channel.VERSIONS)
    assert announced is not None
    said = VERSION_ANNOUNCED.validate_json(announced.data)
    assert (said.version, said.key, said.epoch) == (1, key(1), state.writer.number)
    assert [m.version for m in place.weights.manifests()] == [1]
    assert [m.version for m in place.weights.proposals(0)] == [1, 2, 3]  # of what there was, for the audit
    assert place.checkpoints.keys() == ["step-000001"]
    assert (place.folder / "checkpoints" / "latest").resolve().name == "step-000001"
    line = await place.store.last(Channel.METRICS)
    assert line is not None
    assert STEP_METRICS.validate_json(line.data).gone_back
    findings = audit(await place.evidence())
    assert [check for check in findings.checks if not check.holds] == []
    assert findings.counts["versions_revoked"] == 2


async def test_back_to_the_initial_model(place: Place):
    await place.leave(job_with_checkpoints())
    assert await place.back_to(0) == RolledBack(0, revoked=3, trajectories=12, optimizer=None)
    state = await place.state()
    assert (state.version, state.commit.key, state.checkpoint) == (0, None, None)
    assert place.checkpoints.keys() == []
    assert not (place.folder / "checkpoints" / "latest").is_symlink()
    assert audit(await place.evidence()).holds


async def test_an_optimizer_state_of_before_is_taken_if_that_of_the_version_is_gone(place: Place):
    await place.leave(job_with_checkpoints())
    path = place.checkpoints.folder("step-000002")
    path.rename(path.with_name(".step-000002.removed"))
    assert (await place.back_to(2)).optimizer == 1


async def test_an_ended_job_continues(place: Place):
    ended = job_with_checkpoints()
    ended.write(JobFinished(Failure(Reason.WEIGHTS_DAMAGED, "weights")), GroupAborted("g6", "JobFinished"))
    await place.leave(ended)
    await place.back_to(2)
    state = await place.state()
    assert state.finished is None
    assert state.aborted == {"JobFinished": 2, "VersionRevoked": 4}


async def test_a_failed_job_is_opened_again_and_loses_nothing_that_was_committed(place: Place):
    ended = job_with_checkpoints()
    ended.write(
        JobFinished(Failure(Reason.REWARD_RAISED, "mine:score raised")), GroupAborted("g6", "JobFinished")
    )
    await place.leave(ended)
    assert await place.reopen() == Reopened(3, "mine:score raised")
    state = await place.state()
    assert (state.version, state.finished, state.aborted) == (3, None, {"JobFinished": 2})
    assert state.checkpoint is not None
    assert state.checkpoint.key == "step-000002"
    findings = audit(await place.evidence())
    assert [check for check in findings.checks if not check.holds] == []
    assert (findings.counts["versions"], findings.counts["versions_revoked"]) == (3, 0)


@pytest.mark.parametrize("is_finished", [False, True])
async def test_a_job_that_has_not_ended_or_has_all_of_its_steps_is_not_opened_again(
    place: Place, is_finished: bool
):
    ended = job_with_checkpoints()
    if is_finished:
        ended.write(JobFinished(), GroupAborted("g6", "JobFinished"))
    await place.leave(ended)
    before = await place.store.depths()
    assert await place.reopen(steps=3) is None
    assert await place.store.depths() == before


async def test_a_finished_job_is_opened_again_for_more_steps(place: Place):
    ended = job_with_checkpoints()
    ended.write(CheckpointSaved(3, 1, "step-000003"), JobFinished(), GroupAborted("g6", "JobFinished"))
    await place.leave(ended)
    assert await place.reopen(steps=4) == Reopened(3, "")
    state = await place.state()
    assert (state.version, state.finished, state.aborted) == (3, None, {"JobFinished": 2})
    assert [m.version for m in place.weights.manifests()] == [1, 2, 3]


async def test_a_commit_that_the_ledger_had_lost_is_taken_back_first(place: Place):
    lost = job_with_checkpoints()
    last = next(n for n, e in enumerate(lost.ledger) if any(r for r in e.records if commits(r, 3)))
    lost.lose(len(lost.ledger) - last)
    await place.leave(lost)
    assert (await place.back_to(2)).revoked == 1
    findings = audit(await place.evidence())
    assert findings.holds
    assert (findings.counts["versions"], findings.counts["versions_revoked"]) == (2, 1)


def commits(record: Any, version: int) -> bool:
    return isinstance(record, StepCommitted) and record.version == version


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (3, "3 is the newest version: to continue from it, omit the flag"),
        (4, "there is no version 4: the newest is 3"),
        (2, "the weights of version 2 are deleted or damaged"),
    ],
)
async def test_what_cannot_be_gone_back_to_is_refused_and_nothing_changes(
    place: Place, version: int, said: str
):
    await place.leave(job_with_checkpoints())
    place.damage(2)
    before = await place.store.depths()
    with pytest.raises(SpecError) as refused:
        await place.back_to(version)
    assert str(refused.value) == (
        f"--from-version: {said}. Versions that can be gone back to: 0, 1 (0 is the initial model)"
    )
    assert await place.store.depths() == before
    assert [m.version for m in place.weights.manifests()] == [1, 2, 3]


async def test_a_job_that_never_trained_has_no_version_to_return_to(place: Place):
    await place.store.open()
    with pytest.raises(SpecError, match=r"0 is the newest version.*: nothing was trained"):
        await place.back_to(0)


async def test_a_ledger_of_another_job_is_not_touched(place: Place):
    await place.leave(job_with_checkpoints())
    other = CONFIG.model_copy(update={"uid": "another"})
    with pytest.raises(CorruptLedger, match="of the job 0123, not of another"):
        await roll_back(other, place.store, place.weights, place.checkpoints, version=1, instance="x")


async def test_without_the_ledger_versions_are_found_by_their_parents(place: Place):
    await place.leave(job_with_checkpoints())
    # A proposal that was never committed stands beside them.
    side = place.weights.write(
        version=2,
        parent="other",
        proposal=None,
        key="v00000002-a9",
        tensors=[("steps", np.zeros(4, np.float32))],
    )
    newest = place.weights.manifest(key(3))
    assert intact_versions_before(place.weights, newest.digest, 3) == [1, 2]
    place.damage(1)
    assert intact_versions_before(place.weights, newest.digest, 3) == [2]
    # Where the newest manifest itself is damaged, nobody knows which are on its chain.
    assert sorted(intact_versions_before(place.weights, "unknown", 3)) == [2, 2]
    assert side.version == 2
