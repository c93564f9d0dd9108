"""`rljob export` writes models that transformers loads, adapters merged as peft merges them, or nothing at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from example_job import write_job
from invocation import rljob, snapshot, started
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from rljob_contract.tiny_models import tiny_model

pytestmark = pytest.mark.computes
TOKENS = torch.tensor([[3, 4, 5, 6, 7]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("export") / "base")


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(TOKENS).logits


def adapters(base: Path, folder: Path) -> torch.Tensor:
    """A checkpoint as a job with adapters writes one; what peft computes with it."""
    from peft import LoraConfig, get_peft_model  # four seconds, in each process that collects tests

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False
    )
    wrapped = get_peft_model(model, config).eval()
    wrapped.save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps({**settings, "base_model_name_or_path": str(base)})
    )
    (folder / "checkpoint.json").write_text("{}")
    (folder / "optimizer-00000.safetensors").write_bytes(b"state")
    with torch.no_grad():
        return wrapped(TOKENS).logits


def test_adapters_are_merged(base: Path, tmp_path: Path) -> None:
    expected = adapters(base, tmp_path / "checkpoint")
    before = snapshot(tmp_path / "checkpoint")
    ended = rljob("export", tmp_path / "checkpoint", tmp_path / "out")
    assert (ended.code, ended.errors) == (0, [])
    assert f"wrote {tmp_path / 'out'}: adapters merged into their base model; " in ended.out
    torch.testing.assert_close(logits(tmp_path / "out"), expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(logits(tmp_path / "out"), logits(base), atol=1e-3)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"checkpoint.json", "optimizer-00000.safetensors", "adapter_config.json"}
    assert snapshot(tmp_path / "checkpoint") == before


def test_a_base_model_that_has_moved_is_named(base: Path, tmp_path: Path) -> None:
    expected = adapters(base, tmp_path / "checkpoint")
    settings = json.loads((tmp_path / "checkpoint/adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(tmp_path / "gone")
    (tmp_path / "checkpoint/adapter_config.json").write_text(json.dumps(settings))
    ended = rljob("export", tmp_path / "checkpoint", tmp_path / "out")
    assert ended.code == 2
    assert ended.errors[0].startswith(f"error: --base: {tmp_path / 'gone'} holds no model")
    assert not (tmp_path / "out").exists()
    assert rljob("export", tmp_path / "checkpoint", tmp_path / "out", "--base", base).code == 0
    torch.testing.assert_close(logits(tmp_path / "out"), expected, atol=1e-5, rtol=1e-4)


def test_a_run_s_newest_checkpoint_in_another_dtype(base: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    run = started(write_job(source), tmp_path / "run")
    ended = rljob("export", run.path, tmp_path / "out")
    assert (ended.code, ended.errors) == (2, [f"error: {run.path}: this run has written no checkpoint yet"])
    newest = run.checkpoints / "step-000004"
    newest.mkdir(parents=True)
    for file in base.iterdir():
        (newest / file.name).write_bytes(file.read_bytes())
    (newest / "optimizer-00000.safetensors").write_bytes(b"state")
    (run.checkpoints / "latest").symlink_to("step-000004")
    assert rljob("export", run.path, tmp_path / "out", "--dtype", "float16").code == 0
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        assert tensor.dtype == np.float16
        np.testing.assert_array_equal(tensor, before[name].astype(np.float16))
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float16"


def test_what_is_refused_leaves_nothing(base: Path, tmp_path: Path) -> None:
    adapters(base, tmp_path / "checkpoint")
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut").mkdir()
    for file in (tmp_path / "checkpoint").iterdir():
        (tmp_path / "cut" / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / "cut/adapter_model.safetensors").read_bytes()
    (tmp_path / "cut/adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    before = snapshot(tmp_path)
    for arguments, code, message in (
        (["gone", "out"], 2, "gone: there is no such folder"),
        (["empty", "out"], 2, "empty: holds no model"),
        (["checkpoint", "empty"], 2, "TARGET: "),
        (["checkpoint", "out", "--dtype", "int8"], 2, "--dtype: 'int8' is not possible"),
        ([str(base), "out", "--base", str(base)], 2, "--base: "),
        (["cut", "out"], 1, ""),
    ):
        source, target = tmp_path / arguments[0], tmp_path / arguments[1]
        ended = rljob("export", source, target, *arguments[2:])
        assert (ended.code, ended.out) == (code, "")
        assert message in ended.errors[0]
        assert "damaged" in ended.errors[0] or code == 2
    assert snapshot(tmp_path) == before


def test_adapters_of_another_model_are_refused(base: Path, tmp_path: Path) -> None:
    adapters(base, tmp_path / "checkpoint")
    other = tiny_model(tmp_path / "other", hidden=128)
    ended = rljob("export", tmp_path / "checkpoint", tmp_path / "out", "--base", other)
    assert ended.code == 1
    assert "is incomplete, or has another shape" in ended.errors[0]
    assert not (tmp_path / "out").exists()
