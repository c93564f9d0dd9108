"""A job whose samples cannot be stored trains to its end, and says so; one whose samples can be stored has all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from role_jobs import check, finish, job
from role_tasks import Roles
from sample_answers import answer, sample_log
from tests.memory.store import MemoryServer, MemoryStore
from tests.waiting import in_time

from rljob_contract.tiny_models import tiny_model
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.scorer import Scorer
from rljob_runtime.roles import reward
from rljob_runtime.samples import report
from rljob_runtime.samples.places import SampleFolder
from rljob_runtime.samples.read import SampleFilter, SampleReader
from rljob_runtime.samples.report import open_sample_log
from rljob_runtime.samples.trained import TrainedLog


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


async def test_a_place_that_takes_nothing_costs_samples_only(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_LOOK", 0.01)
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "samples"
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=1)
    async with Roles(config.model_copy(update={"samples_uri": str(place)}), model) as roles:
        line = await in_time(roles.until(lambda m: m.samples_lost))
        assert line.samples_lost.startswith("reward cannot store samples (0 are lost), training continues: ")
        assert str(place) in line.samples_lost
        await finish(roles)
    await check(roles)


async def test_a_pool_that_does_not_close_costs_no_samples(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = sample_log(tmp_path / "samples")
    samples.offer(answer())

    async def fail(scorer: Scorer) -> None:
        raise OSError("the pool's socket is gone")

    monkeypatch.setattr(reward, "open_sample_log", lambda config, tokenizer: samples)
    for method in ("start", "close"):
        monkeypatch.setattr(Scorer, method, fail)
    store = MemoryStore(MemoryServer(), subject="job")
    with pytest.raises(OSError, match="socket"):
        await reward.run_reward(
            job(tmp_path, model), store, stop=asyncio.Event(), ready=lambda: None, workers=1
        )
    assert not samples._thread.is_alive()
    assert samples.counts.stored == 1


async def test_a_place_that_cannot_be_opened_costs_samples_only(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(uri: str) -> None:
        raise PermissionError(f"no credentials for {uri}")

    monkeypatch.setitem(open_sample_log.__globals__, "open_samples", fail)
    config = job(tmp_path, model).model_copy(update={"samples_uri": "s3://bucket/samples"})
    assert open_sample_log(config, Tokenizer(model)) is None
    assert "no samples are kept, training continues: PermissionError" in caplog.text


async def test_every_answer_of_a_small_job_is_kept(tmp_path: Path, model: Path) -> None:
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=1)
    async with Roles(config.model_copy(update={"samples_uri": str(tmp_path / "samples")}), model) as roles:
        await finish(roles)
    await check(roles)
    reader = SampleReader(SampleFolder(tmp_path / "samples"), TrainedLog(tmp_path / "trainer"))
    for step in range(1, 7):
        page = reader.page(SampleFilter(step=step, evaluation=False))
        assert page.problems == ()
        assert [group.step for group in page.groups] == [step] * 4
        assert all(answer.trained for group in page.groups for answer in group.answers)
    evaluations = reader.page(SampleFilter(evaluation=True)).groups
    assert sorted({group.evaluated or 0 for group in evaluations}) == [0, 3, 6]
    assert all(len(group.answers) == 2 for group in evaluations)
