"""A backup that fills a job on a cluster, on a real nats-server: under another UID, once, and only where it fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from evidence_builder import job, refuted
from evidence_files import SPEC, write_whole_run

from rljob_cli.audit import audit
from rljob_cli.audit.read import read_configured
from rljob_cli.backup.place import FolderPlace
from rljob_cli.backup.restore_on_cluster import restore_configured
from rljob_cli.backup.sources import back_up_configured, back_up_run
from rljob_cli.run_folder.folder import RunFolder
from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.errors import BackupDamaged, CorruptLedger, SpecError
from rljob_core.spec import RLJobSpec
from rljob_runtime.messaging.connect import role_store
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.model.identity import model_identity

Config = Callable[..., JobConfig]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `model`, and a `run` of it of three steps."""
    made = tmp_path_factory.mktemp("made")
    write_whole_run(job(), RunFolder(made / "run"), model=model_identity(tiny_model(made / "model")))
    return made


@pytest.fixture
async def place(made: Path, tmp_path: Path) -> FolderPlace:
    place = FolderPlace(tmp_path / "backup")
    await back_up_run(RunFolder(made / "run"), place)
    return place


@pytest.fixture
def config(made: Path, tmp_path: Path) -> Config:
    """The configuration of a job that continues it elsewhere."""

    def config(uid: str = "4567", **changes: Any) -> JobConfig:
        spec = {**SPEC, "model": {"uri": str(made / "model")}, **changes}
        return JobConfig(
            namespace="elsewhere",
            job="continued",
            uid=uid,
            spec=RLJobSpec.model_validate(spec),
            weights_uri=str(tmp_path / uid / "weights"),
            checkpoint_uri=str(tmp_path / uid / "checkpoints"),
            trainer_log_uri=str(tmp_path / uid / "trainer"),
        )

    return config


async def test_the_job_has_the_history_under_another_uid_and_can_be_moved_again(
    place: FolderPlace, config: Config, tmp_path: Path
) -> None:
    async with EmbeddedServer(tmp_path / "nats") as server:
        environment = {"RLJOB_NATS_URL": server.url}
        one, other = config("4567"), config("89ab")
        assert (await restore_configured(place, one, environment)).version == 3
        findings = audit(await read_configured(one, environment))
        assert findings.holds, [check for check in findings.checks if not check.holds]
        assert findings.counts["versions"] == 3
        with pytest.raises(SpecError, match="has run, or a restore of it broke off: it has ledger, "):
            await restore_configured(place, one, environment)

        again = FolderPlace(tmp_path / "again")
        await back_up_configured(one, again, environment)
        await restore_configured(again, other, environment)
        findings = audit(await read_configured(other, environment))
        assert findings.holds, [check for check in findings.checks if not check.holds]


async def test_the_configuration_that_pods_mount_is_compared(
    place: FolderPlace, config: Config, tmp_path: Path
) -> None:
    async with EmbeddedServer(tmp_path / "nats") as server:
        environment, workers = {"RLJOB_NATS_URL": server.url}, tmp_path / "workers"
        mine = config()
        await restore_configured(place, mine, environment)
        workers.mkdir()
        (workers / "continued-config.json").write_text(mine.model_dump_json(by_alias=True))
        findings = audit(await read_configured(mine, environment, workers=workers))
        assert findings.holds, [check for check in findings.checks if not check.holds]

        doctored = config(reward={**SPEC["reward"], "timeoutSeconds": 1.0})
        (workers / "continued-rollout-cpu-config.json").write_text(doctored.model_dump_json(by_alias=True))
        findings = audit(await read_configured(mine, environment, workers=workers))
        assert refuted(findings.checks) == {"specs": {"spec.reward.timeoutSeconds"}}
        (workers / "continued-config.json").write_text("{")
        findings = audit(await read_configured(mine, environment, workers=workers))
        assert refuted(findings.checks).keys() == {"specs", "sources"}


async def test_what_the_history_rests_on_must_be_the_same(
    place: FolderPlace, config: Config, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "other", hidden=16)
    for field, changes in {
        "spec.data.groupSize": {"data": {**SPEC["data"], "groupSize": 7}},
        "spec.model.uri": {"model": {"uri": str(model)}},
    }.items():
        with pytest.raises(SpecError) as refused:
            await restore_configured(place, config(**changes), {})
        assert refused.value.path == field


@pytest.mark.parametrize("part", ["streams/ledger/*", "weights/v3-a1/weights.safetensors", "trainer/*/*"])
async def test_a_restore_that_breaks_off_leaves_a_ledger_that_no_coordinator_takes(
    place: FolderPlace, config: Config, tmp_path: Path, part: str
) -> None:
    (file,) = (tmp_path / "backup").glob(part)
    file.write_bytes(file.read_bytes()[:-1])
    async with EmbeddedServer(tmp_path / "nats") as server:
        environment = {"RLJOB_NATS_URL": server.url}
        with pytest.raises(BackupDamaged, match=file.name):
            await restore_configured(place, config(), environment)
        with pytest.raises(SpecError, match=r"Delete the RLJob"):
            await restore_configured(place, config(), environment)
        store = role_store(config(), "coordinator", environment=environment)
        await store.open()
        with pytest.raises(CorruptLedger, match="is of the job 0123, not of 4567"):
            await Ledger(store, job="4567", instance="one").replay()
        await store.close()
