"""What is read of a model's folder, and what a checkpoint takes over of it: nothing that a link leads to elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError
from rljob_runtime.model.folder_files import files_taken_over
from rljob_runtime.model.identity import model_identity
from rljob_runtime.model.settings import model_settings, weight_files
from rljob_runtime.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    return secret


def test_a_checkpoint_takes_over_files_of_the_model_by_their_names(model: Path, secret: Path) -> None:
    before = {path.name for path in files_taken_over(model)}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= before
    assert "model.safetensors" not in before
    for name in ("README.md", "added_tokens.json", "evil.pth"):
        (model / name).symlink_to(secret)
    (model / "vocab.json").symlink_to("/proc/self/environ")
    (model / "notes.txt").write_text("of its author")
    (model / "LICENSE").write_text("of its author")
    assert {path.name for path in files_taken_over(model)} == {*before, "LICENSE"}


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "config.json", "generation_config.json", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_nothing_outside_of_the_folder_is_opened(model: Path, secret: Path, name: str, kind: str) -> None:
    (model / name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(model / name)
    else:
        (model / name).symlink_to(secret)
    for read in (model_settings, weight_files, model_identity, Tokenizer):
        with pytest.raises(SpecError, match=f"{name} is no file of the model's folder"):
            read(model)


def test_the_links_of_a_hub_s_cache_stay_in_it(model: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "0123abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(model.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", str(number)))
    assert model_settings(snapshot).vocabulary
    assert weight_files(snapshot)
    assert Tokenizer(snapshot).encode("1")
    assert "tokenizer.json" in {path.name for path in files_taken_over(snapshot)}


@pytest.mark.parametrize("name", ["../model.safetensors", "/dev/zero", "pytorch_model.bin"])
def test_an_index_names_safetensors_of_the_folder_only(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model.parent / "model.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(SpecError, match="is no safetensors file of the folder"):
        weight_files(model)
