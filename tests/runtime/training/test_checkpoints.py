"""Checkpoints are written completely or not at all, transformers loads them, and those of other models are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from full_disk import files_of_at_most
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_contract.samples import job_config, random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError, StorageRefused
from rljob_core.messages import Retention
from rljob_runtime.model.identity import model_identity
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.training.checkpoint_base import CheckpointInfo
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.training.registry import create_backend


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(root: Path, model: Path) -> CheckpointStore:
    return CheckpointStore(str(root), model_path=model)


def saving(text: str) -> Callable[[str], None]:
    def save(folder: str) -> None:
        (Path(folder) / "optimizer.pt").write_text(text)

    return save


def write(store: CheckpointStore, version: int, *, attempt: int = 1, text: str = "state") -> str:
    return store.write(version=version, manifest="m", attempt=attempt, save=saving(text))


def names(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_the_best_version_is_kept_and_named_beside_the_newest_and_those_to_be_evaluated(
    store: CheckpointStore, root: Path
) -> None:
    def write_with(version: int, retention: Retention) -> None:
        store.write(version=version, manifest="m", attempt=1, save=saving(""), retention=retention)

    for version in (2, 4, 6, 8):
        write_with(version, Retention(best=0, evaluated=0, every=4))
    assert store.keys() == ["step-000004", "step-000006", "step-000008"]  # 4 may turn out to be the best
    write_with(10, Retention(best=4, evaluated=4, every=4))
    assert store.keys() == ["step-000004", "step-000008", "step-000010"]
    assert (root / "best").readlink() == Path("step-000004")
    store.prune(1, Retention(best=8, evaluated=10, every=4))
    assert store.keys() == ["step-000008", "step-000010"]
    assert (root / "best").readlink() == Path("step-000008")
    store.forget(after=4)
    assert names(root) == []


def test_transformers_loads_what_a_backend_saved(store: CheckpointStore, root: Path, model: Path) -> None:
    config = job_config(model, trainer={"options": {"threads": 1}})
    trainer = create_backend(config, rank=0, world_size=1, model_path=model)
    trainer.begin_step(0)
    trainer.accumulate(random_samples(8))
    trainer.finish_step()
    key = store.write(version=1, manifest="m1", attempt=3, save=trainer.save)
    assert key == "step-000001"
    assert (store.info(key).version, store.info(key).attempt) == (1, 3)

    for folder in (store.folder(key), root / "latest"):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        own = loaded.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in trainer.tensors())
        tokenizer = AutoTokenizer.from_pretrained(folder)
        original = AutoTokenizer.from_pretrained(model)
        assert tokenizer("1 + 2 =") == original("1 + 2 =")
        assert tokenizer.decode([3, 4, 5]) == original.decode([3, 4, 5])

    again = create_backend(config, rank=0, world_size=1, model_path=model)
    again.load_state(str(store.folder(key)))
    assert again.random_state() == trainer.random_state()


def test_transformers_loads_adapters_with_the_base_model_that_they_name(
    store: CheckpointStore, root: Path, model: Path
) -> None:
    config = job_config(model, lora={"rank": 4, "alpha": 8.0}, trainer={"options": {"threads": 1}})
    trainer = create_backend(config, rank=0, world_size=1, model_path=model)
    trainer.begin_step(0)
    trainer.accumulate(random_samples(8))
    trainer.finish_step()
    store.write(version=1, manifest="m1", attempt=1, save=trainer.save)
    loaded = AutoModelForCausalLM.from_pretrained(root / "latest").state_dict()
    for name, tensor in trainer.tensors():
        own = loaded[name.replace(".weight", ".default.weight")]
        assert torch.equal(own, tensor), name
    tokenizer = AutoTokenizer.from_pretrained(root / "latest")
    assert tokenizer("1 + 2 =")["input_ids"] == Tokenizer(model).encode("1 + 2 =")


def test_only_rank_zero_writes(tmp_path: Path, model: Path) -> None:
    config = job_config(model, trainer={"options": {"threads": 1}})
    create_backend(config, rank=1, world_size=2, model_path=model).save(str(tmp_path))
    assert names(tmp_path) == []


def test_the_newest_two_are_kept_and_latest_is_the_newest(store: CheckpointStore, root: Path) -> None:
    assert store.keys() == []
    for version in (1, 5, 10, 1_000_000):
        key = write(store, version)
        assert (root / "latest").readlink() == Path(key)
        assert (root / "latest" / "checkpoint.json").is_file()
    assert store.keys() == ["step-000010", "step-1000000"]
    assert names(root) == ["latest", "step-000010", "step-1000000"]


def test_those_that_were_revoked_are_forgotten(store: CheckpointStore, root: Path) -> None:
    for version in (5, 10):
        write(store, version)
    store.forget(after=10)
    assert names(root) == ["latest", "step-000005", "step-000010"]
    store.forget(after=9)
    assert names(root) == ["latest", "step-000005"]
    assert (root / "latest").readlink() == Path("step-000005")
    write(store, 6)  # not taken for older than what was revoked
    assert store.keys() == ["step-000005", "step-000006"]
    store.forget(after=0)
    assert names(root) == []


def test_one_of_the_same_version_stands_beside_it(store: CheckpointStore, root: Path) -> None:
    """A step done again under a new coordinator must not change what an earlier record points to."""
    keys = [write(store, 3, attempt=attempt, text=f"state {attempt}") for attempt in (1, 2, 3)]
    assert keys == store.keys() == ["step-000003", "step-000003-2", "step-000003-3"]
    assert [(store.folder(k) / "optimizer.pt").read_text()[-1] for k in keys] == ["1", "2", "3"]
    assert (root / "latest").readlink() == Path(keys[2])
    assert [store.newest(version) for version in (2, 3, 9)] == [None, (3, keys[2]), (3, keys[2])]
    write(store, 4)
    assert len(store.keys()) == 4
    write(store, 5)
    assert names(root) == ["latest", "step-000004", "step-000005"]


KILLED = """
import os, signal, sys
from pathlib import Path
from rljob_runtime.training.checkpoints import CheckpointStore
def save(folder):
    (Path(folder) / "optimizer.pt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
CheckpointStore(sys.argv[1], model_path=Path(sys.argv[2])).write(version=2, manifest="m", attempt=1, save=save)
"""


def test_a_kill_while_writing_leaves_the_earlier_ones(
    store: CheckpointStore, root: Path, model: Path
) -> None:
    write(store, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, str(root), str(model)], timeout=600, check=False)
    assert done.returncode == -9
    assert store.keys() == ["step-000001"]
    assert (root / "latest").readlink() == Path("step-000001")
    write(store, 2)
    assert names(root) == ["latest", "step-000001", "step-000002"]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer-00000.safetensors"])
def test_a_disk_that_takes_no_more_is_reported_and_earlier_ones_stay(
    store: CheckpointStore, root: Path, model: Path, file: str
) -> None:
    """Whether the disk is full while the model is written, or later at the optimizer's state."""
    trainer = create_backend(
        job_config(model, trainer={"options": {"threads": 1}}), rank=0, world_size=1, model_path=model
    )
    trainer.accumulate(random_samples(4))
    trainer.finish_step()
    write(store, 1)
    size = (model / "model.safetensors").stat().st_size
    limit = size // 2 if file == "model.safetensors" else size + 1000
    written: list[str] = []

    def save(folder: str) -> None:
        try:
            trainer.save(folder)
        finally:
            written.extend(names(Path(folder)))

    with files_of_at_most(limit), pytest.raises(StorageRefused, match="version 2") as caught:
        store.write(version=2, manifest="m", attempt=1, save=save)
    assert str(root / "step-000002") in str(caught.value)
    assert ("optimizer-00000.safetensors" in written) is (
        file != "model.safetensors"
    )  # it was this write that failed
    assert names(root) == ["latest", "step-000001"]
    assert (root / "latest" / "optimizer.pt").read_text() == "state"


def test_an_error_of_our_own_is_not_taken_for_the_disk_s(store: CheckpointStore, root: Path) -> None:
    write(store, 1)

    def save(folder: str) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        store.write(version=2, manifest="m", attempt=1, save=save)
    assert names(root) == ["latest", "step-000001"]


def test_a_root_that_cannot_be_made_is_reported(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageRefused, match="file/checkpoints"):
        write(CheckpointStore(str(tmp_path / "file" / "checkpoints"), model_path=model), 1)


def test_a_checkpoint_of_another_model_is_refused(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    key = write(store, 1)
    store.verify_model(key)
    for other in (
        tiny_model(tmp_path / "larger", layers=3),
        tiny_model(tmp_path / "same-architecture", seed=1),
    ):
        with pytest.raises(SpecError, match="another model"):
            CheckpointStore(str(root), model_path=other).verify_model(key)


def test_a_model_moved_and_resaved_with_the_same_content_is_the_same(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_version": "9.9.9"}, indent=8))
    assert model_identity(copy) == model_identity(model)


def test_what_is_no_checkpoint_is_named(store: CheckpointStore, root: Path) -> None:
    with pytest.raises(SpecError, match="step-000001"):
        store.verify_model("step-000001")
    key = write(store, 1)
    (root / key / "checkpoint.json").write_text("{")
    with pytest.raises(SpecError, match="damaged"):
        store.info(key)


@pytest.mark.parametrize("name", ["../evil.pth", "/etc/evil", "ranks/../../evil", ""])
def test_a_checkpoint_names_no_file_outside_of_its_folder(name: str) -> None:
    files = {name: {"size": 1, "digest": ""}}
    with pytest.raises(ValidationError, match="is not the name of a checkpoint's file"):
        CheckpointInfo.model_validate({"version": 1, "attempt": 1, "model": "m", "files": files})
