"""Checkpoints: whole or not there, loadable by transformers, of this model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_model
from training_samples import job_config, random_samples
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_core.errors import JobFailed, SpecError
from rljob_runtime.backends import create_backend
from rljob_runtime.checkpoint import CheckpointStore, model_identity


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(root: Path, model: Path) -> CheckpointStore:
    return CheckpointStore(str(root), model_path=model)


def saving(text: str) -> object:
    def save(folder: str) -> None:
        (Path(folder) / "optimizer.pt").write_text(text)

    return save


def write(store: CheckpointStore, version: int, *, attempt: int = 1, text: str = "state") -> str:
    return store.write(version=version, attempt=attempt, save=saving(text))  # type: ignore[arg-type]


def names(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_transformers_loads_what_a_backend_saved(store: CheckpointStore, root: Path, model: Path) -> None:
    config = job_config(model, trainer={"options": {"threads": 1}})
    trainer = create_backend(config, rank=0, world_size=1, model_path=model)
    trainer.begin_step(0)
    trainer.accumulate(random_samples(8))
    trainer.finish_step()
    key = store.write(version=1, attempt=3, save=trainer.save)
    assert key == "step-000001"
    assert (store.info(key).version, store.info(key).attempt) == (1, 3)

    for folder in (store.folder(key), root / "latest"):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        own = loaded.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in trainer.tensors())
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokens = tokenizer("1 + 2 =")["input_ids"]
        assert tokens == AutoTokenizer.from_pretrained(model)("1 + 2 =")["input_ids"]
        assert tokenizer.decode(tokens) == "1 + 2 ="

    again = create_backend(config, rank=0, world_size=1, model_path=model)
    again.load_state(str(store.folder(key)))
    assert again.random_state() == trainer.random_state()


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


def test_one_of_the_same_version_is_replaced(store: CheckpointStore, root: Path) -> None:
    write(store, 3, attempt=1, text="old")
    key = write(store, 3, attempt=2, text="new")
    assert (store.folder(key) / "optimizer.pt").read_text() == "new"
    assert store.info(key).attempt == 2
    assert names(root) == ["latest", "step-000003"]


def test_a_replacement_cut_short_between_its_two_renames_loses_nothing(
    store: CheckpointStore, root: Path
) -> None:
    key = write(store, 3, text="old")
    (root / key).rename(root / f".{key}.replaced")
    assert (store.folder(key) / "optimizer.pt").read_text() == "old"
    assert store.keys() == [key]


KILLED = """
import os, signal, sys
from pathlib import Path
from rljob_runtime.checkpoint import CheckpointStore
def save(folder):
    (Path(folder) / "optimizer.pt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
CheckpointStore(sys.argv[1], model_path=Path(sys.argv[2])).write(version=2, attempt=1, save=save)
"""


def test_a_kill_while_writing_leaves_the_earlier_ones(
    store: CheckpointStore, root: Path, model: Path
) -> None:
    write(store, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, str(root), str(model)], timeout=120, check=False)
    assert done.returncode == -9
    assert store.keys() == ["step-000001"]
    assert (root / "latest").readlink() == Path("step-000001")
    write(store, 2)
    assert names(root) == ["latest", "step-000001", "step-000002"]


FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from training_samples import job_config, random_samples
from rljob_core.errors import JobFailed
from rljob_runtime.backends import create_backend
from rljob_runtime.checkpoint import CheckpointStore
model = Path(sys.argv[2])
backend = create_backend(job_config(model), rank=0, world_size=1, model_path=model)
backend.accumulate(random_samples(2))
backend.finish_step()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), int(sys.argv[4])))
try:
    CheckpointStore(sys.argv[1], model_path=model).write(version=2, attempt=1, save=backend.save)
except JobFailed as error:
    print(error)
    sys.exit(17)
"""


@pytest.mark.parametrize("torch_file", [False, True])
def test_a_disk_that_takes_no_more_is_reported_and_earlier_ones_stay(
    store: CheckpointStore, root: Path, model: Path, torch_file: bool
) -> None:
    """The kernel refuses a write of safetensors', or later one of torch's (here by a limit on file size)."""
    write(store, 1)
    size = (model / "model.safetensors").stat().st_size
    limit = size + 1000 if torch_file else size // 2
    arguments = [str(root), str(model), str(Path(__file__).parent), str(limit)]
    done = subprocess.run(
        [sys.executable, "-c", FULL, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 17, done.stderr
    assert "version 2" in done.stdout
    assert str(root / "step-000002") in done.stdout
    assert names(root) == ["latest", "step-000001"]
    assert (root / "latest" / "optimizer.pt").read_text() == "state"


def test_a_root_that_cannot_be_made_is_reported(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobFailed, match="file/checkpoints"):
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
