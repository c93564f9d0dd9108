"""`rljob patch` of a run that does not run: what it refuses, what it writes, what `--resume` keeps of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from example_job import write_job, write_model
from invocation import Ended, rljob, snapshot, started

from rljob_cli.manifest.load import load_job
from rljob_cli.patch.change import change_of, kept_patches, patch, restarts
from rljob_cli.run import resume
from rljob_cli.run_folder.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run of `job.yaml`, as its start left it."""
    return started(write_job(tmp_path, pipeline={"mode": "BoundedAsync", "maxStaleness": 2}))


def patched(folder: RunFolder, *texts: str) -> Ended:
    return rljob("patch", folder.path, *(part for text in texts for part in ("--set", text)))


def spec(folder: RunFolder) -> dict[str, Any]:
    identity = folder.identity()
    assert identity is not None
    found: dict[str, Any] = identity.manifest["spec"]
    return found


def test_a_change_is_written_as_a_whole_and_reported(folder: RunFolder) -> None:
    ended = patched(folder, "pipeline.mode=Streaming", "spec.pipeline.maxStaleness=0")
    assert ended.out.splitlines() == [
        'spec.pipeline.mode: "BoundedAsync" → "Streaming"',
        "spec.pipeline.maxStaleness: 2 → 0",
        f"kept for the next `rljob run … --output {folder.path} --resume`: it does not run now",
    ]
    assert ended.code == 0
    assert (spec(folder)["pipeline"]["mode"], spec(folder)["pipeline"]["maxStaleness"]) == ("Streaming", 0)
    identity = folder.identity()
    assert identity is not None
    assert identity.generation == 2
    assert identity.patches == ["spec.pipeline.mode=Streaming", "spec.pipeline.maxStaleness=0"]


def test_what_fits_and_is_perhaps_not_meant_is_said(folder: RunFolder) -> None:
    ended = patched(folder, "algorithm.loss=GSPO")
    assert ended.code == 0
    assert ended.out.splitlines()[1].startswith("warning: spec.algorithm.clip: 0.2 hardly ever acts with")


def test_a_damaged_job_is_said_with_a_way_out_that_the_command_has(folder: RunFolder) -> None:
    folder.job.write_text("{")
    (error,) = patched(folder, "steps=5").errors
    assert error.startswith(f"error: {folder.job}: cannot be read (")
    assert error.endswith("): put a backup of it there, or name another folder")


def test_what_changes_nothing_is_not_written(folder: RunFolder) -> None:
    before = snapshot(folder.path)
    ended = patched(folder, "pipeline.maxStaleness=2", "steps=4")
    assert (ended.code, ended.out) == (0, "nothing changes: the job has these values already\n")
    assert snapshot(folder.path) == before


@pytest.mark.parametrize(
    ("texts", "errors"),
    [
        (["pipeline.maxStalenes=1"], ["spec.pipeline.maxStalenes: unknown field: did you mean maxStaleness? (given"]),
        (["pipelin.mode=Streaming"], ["spec.pipelin: unknown field: did you mean pipeline?"]),
        (["pipeline.mode=Streaming"], ["spec.pipeline.maxStaleness: maxStaleness must be 0 with mode Synchronous"]),
        (["pipeline.maxStaleness=0"], ["spec.pipeline.maxStaleness: maxStaleness must be at least 1 with mode"]),
        (["pipeline.maxStaleness=65"], ["spec.pipeline.maxStaleness: must be at most 64, not 65 (given by --set)"]),
        (["pipeline"], ["--set: 'pipeline': write path=value"]),
        (["rollout.pools.gpu.replicas=2"], ["--set spec.rollout.pools.gpu.replicas: the list has no item 'gpu': "]),
        (["steps=none", "algorithm.clip=-1"], ["spec.steps: a whole number", "spec.algorithm.clip: must be "]),
        (
            ["data.seed=7", "model.uri=elsewhere", "nats.url=nats://there"],
            [
                "spec.model.uri: uri is immutable, because the job's weights and checkpoints began with this model: ",
                "spec.data.seed: seed is immutable, because the ledger numbers the prompts of this data: leave it at 1",
                "spec.nats.url: url is immutable, because the job's ledger and trajectories are there: leave it at",
            ],
        ),
        (["metadata.name=other"], ["metadata.name: belongs to the job for good"]),
        (["status.step=4"], ["--set: 'status.step=4': write path=value"]),
        (["suspend=true"], ["spec.suspend: only a cluster suspends jobs; it does not run, and `rljob run … --resume`"]),
        (["rollout.pools.cpu.replicas=0"], ["spec.rollout.pools: no pool has a replica"]),
        (["rollout.engine.options={slot: 3}"], ["spec.rollout.engine.options.slot: "]),
        (
            ["trainer.template={spec: {volumes: [{name: run, emptyDir: null, hostPath: {path: /h}}]}}"],
            ["volumes[run]: only configMap and emptyDir volumes exist in `rljob run`: use a path"],
        ),
        (
            ["nats.credentialsSecret=mine"],
            ["env[RLJOB_NATS_CREDENTIALS]: its source exists only in a cluster: set this variable in your shell"],
        ),
    ],
    ids=lambda value: value[0].partition("=")[0] if "=" in value[0] else "",
)  # fmt: skip
def test_what_is_refused_leaves_all_as_it_was(folder: RunFolder, texts: list[str], errors: list[str]) -> None:
    before = snapshot(folder.path)
    ended = patched(folder, *texts)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.errors) == len(errors), ended.errors
    for said, expected in zip(ended.errors, errors, strict=True):
        assert said.startswith(f"error: {expected}")
    assert snapshot(folder.path) == before


def test_a_pool_stays_where_it_is_while_the_job_runs(folder: RunFolder) -> None:
    with folder.locked():
        ended = patched(folder, "rollout.pools.cpu.site=west")
    assert ended.code == 2
    assert (
        "spec.rollout.pools.cpu.site: site is immutable while the job runs, because a pool stays where it "
        "is: leave it at null, add another pool and remove this one, or stop the run first" in ended.errors[0]
    )
    assert patched(folder, "rollout.pools.cpu.site=west").code == 0  # each run may have it elsewhere


def test_a_folder_without_a_job(tmp_path: Path) -> None:
    ended = patched(RunFolder(tmp_path / "none"), "steps=5")
    assert ended.errors == [
        f"error: DIR: {tmp_path}/none holds no run: give the output folder of an `rljob run` (runs/<job's name>)"
    ]
    assert ended.code == 2
    assert not (tmp_path / "none").exists()


def test_a_finished_job_may_get_more_steps(folder: RunFolder) -> None:
    folder.summary.write_text(json.dumps({"exit": "Succeeded", "steps": 4}))
    ended = patched(folder, "steps=5")
    assert (ended.code, spec(folder)["steps"]) == (0, 5)
    assert f"kept for the next `rljob run … --output {folder.path} --resume`" in ended.out


def test_patches_follow_one_another_and_the_newest_of_a_field_counts(folder: RunFolder) -> None:
    for text in ("pipeline.maxStaleness=3", "steps=9", "pipeline.maxStaleness=4"):
        assert patched(folder, text).code == 0
    identity = folder.identity()
    assert identity is not None
    assert identity.generation == 4
    assert identity.patches == ["spec.pipeline.maxStaleness=4", "spec.steps=9"]
    assert (spec(folder)["steps"], spec(folder)["pipeline"]["maxStaleness"]) == (9, 4)


def test_of_changes_at_once_none_is_lost(folder: RunFolder) -> None:
    texts = ["spec.steps=9", "spec.backoffLimit=7", "spec.pipeline.maxStaleness=5", "spec.reward.replicas=2"]
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(lambda text: patch(RunFolder(folder.path), [text]), texts))
    identity = folder.identity()
    assert identity is not None
    assert identity.generation == 1 + len(texts)
    assert sorted(identity.patches) == sorted(texts)
    now = spec(folder)
    assert (now["steps"], now["backoffLimit"], now["reward"]["replicas"]) == (9, 7, 2)
    assert now["pipeline"]["maxStaleness"] == 5


# -------------------------------------------------------------------------------------------------- --resume


def kept(folder: RunFolder, file: Path, *overrides: str) -> list[str]:
    identity = folder.identity()
    assert identity is not None
    return kept_patches(identity, load_job(file, overrides))


def test_a_patch_stays_until_the_manifest_or_its_flags_say_something_new(
    tmp_path: Path, folder: RunFolder
) -> None:
    file = tmp_path / "job.yaml"
    assert patched(folder, "pipeline.maxStaleness=4", "rollout.pools.cpu.replicas=3").code == 0
    both = ["spec.pipeline.maxStaleness=4", "spec.rollout.pools.cpu.replicas=3"]
    assert kept(folder, file) == both
    assert kept(folder, file, "spec.steps=7") == both
    assert kept(folder, file, "spec.pipeline.maxStaleness=2") == both, "as it was given before"
    assert kept(folder, file, "spec.pipeline.maxStaleness=1") == both[1:]
    write_job(tmp_path, pipeline={"mode": "Streaming"})
    assert kept(folder, file) == both[1:], "the manifest has changed in this field since"


def test_what_becomes_of_patches_is_said_of_a_finished_run_too(
    tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "lost_since_its_end", lambda *_: {})  # it has none
    assert patched(folder, "pipeline.maxStaleness=4", "steps=9").code == 0
    folder.summary.write_text(json.dumps({"exit": "Succeeded", "steps": 4}))
    ended = rljob("run", tmp_path / "job.yaml", "--output", folder.path, "--resume", "--set", "steps=3")
    assert (ended.code, ended.errors) == (0, [])
    assert ended.out.splitlines()[:3] == [
        "kept from rljob patch: spec.pipeline.maxStaleness=4",
        "no longer kept from rljob patch: spec.steps=9: this command gives another value there than the last one",
        f"sums is finished already: 4 steps; see {folder.summary}",
    ]


def test_relative_paths_start_at_the_manifests_folder(tmp_path: Path) -> None:
    folder = started(write_job(tmp_path, evaluation=None))
    (tmp_path / "held.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    content = "{data: {source: jsonl, dataset: held.jsonl}, everySteps: 2, samples: 1}"
    ended = patched(folder, f"evaluation={content}")
    assert ended.code == 0, ended.errors
    assert spec(folder)["evaluation"]["data"]["dataset"] == f"{tmp_path}/held.jsonl"


# ------------------------------------------------------------------------------------------- what it leads to


@pytest.mark.parametrize(
    ("texts", "stated"),
    [
        (["pipeline.maxStaleness=4", "pipeline.inflight=Keep", "backoffLimit=5"], []),
        (["steps=9"], ["restarts: coordinator"]),
        (["algorithm.learningRate=1e-5"], ["restarts: coordinator, trainer"]),
        (["rollout.pools.cpu.replicas=3"], ["rollout pool cpu: 1 → 3 processes"]),
        (["trainer.options={threads: 1}"], ["restarts: trainer"]),
        (
            ["rollout.pools=[{name: other, replicas: 2}]", "reward.replicas=2"],
            ["reward: 1 → 2 processes", "starts: rollout pool other, 2", "stops: rollout pool cpu"],
        ),
    ],
    ids=lambda value: " ".join(value).partition("=")[0],
)
def test_what_restarts_is_what_the_reconcile_will_restart(
    folder: RunFolder, texts: list[str], stated: list[str]
) -> None:
    identity = folder.identity()
    assert identity is not None
    change = change_of(folder, identity, [f"spec.{text}" for text in texts])
    assert list(restarts(change, folder.defaults(nats_url=""))) == stated


def test_a_model_that_was_removed_meanwhile_is_reported(tmp_path: Path, folder: RunFolder) -> None:
    (tmp_path / "model" / "config.json").unlink()
    (error,) = patched(folder, "steps=9").errors
    assert error.startswith("error: spec.model.uri: ")
    (tmp_path / "model").rename(tmp_path / "old")
    write_model(tmp_path / "model")
    assert patched(folder, "steps=9").code == 0


@pytest.mark.parametrize("written", [None, 2, 4])
def test_a_folder_of_another_format_is_refused(folder: RunFolder, written: int | None) -> None:
    content = json.loads(folder.job.read_text())
    assert content.pop("format") == 3
    folder.job.write_text(json.dumps(content if written is None else {**content, "format": written}))
    ended = patched(folder, "algorithm.kl=0.1")
    assert (ended.code, ended.out) == (2, "")
    (error,) = ended.errors
    assert f"job.json: is of format {written}, and this release of rljob reads 3: use the release" in error


def test_a_stored_job_that_somebody_has_damaged_is_named_in_plain_words(folder: RunFolder) -> None:
    content = json.loads(folder.job.read_text())
    content["manifest"]["spec"]["steps"] = "many"
    folder.job.write_text(json.dumps(content))
    ended = patched(folder, "algorithm.kl=0.1")
    assert (ended.code, ended.out) == (2, "")
    (error,) = ended.errors
    assert error.startswith(
        "error: job.json: holds no valid job any more: spec.steps: a whole number is needed, not "
    )
    assert "pydantic" not in error
