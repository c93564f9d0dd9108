"""Models are loaded as they are, also by several threads of a process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError
from rljob_runtime.model.causal import empty_model, load_model

THREADS, LOADS = 4, 8


def load(path: Path) -> Any:
    return load_model(path, dtype=torch.float32, device=torch.device("cpu"))


def make(path: Path) -> Any:
    return empty_model(path, dtype=torch.float32)


@pytest.mark.parametrize("others", [load, make], ids=["load", "make"])
def test_threads_that_load_at_once_keep_embeddings_tied(others: Any, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model", architecture="gemma2")
    tie, together = PreTrainedModel.tie_weights, Barrier(THREADS)

    def several(number: int) -> bool:
        together.wait()
        models = [(load, others)[number % 2](path) for _ in range(LOADS)]
        return all(m.get_input_embeddings().weight is m.get_output_embeddings().weight for m in models)

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(several, range(THREADS)))
        assert PreTrainedModel.tie_weights is tie
    finally:
        PreTrainedModel.tie_weights = tie  # of no other test


def set_config(path: Path, **settings: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize("load", [load, make], ids=["load", "make"])
@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_a_folder_names_no_code_for_attention(load: Any, name: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model")
    set_config(path, **{name: "org/kernel"})  # which transformers would download, and run
    assert load(path).config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "settings",
    [{"num_attention_heads": 0}, {"hidden_size": "x"}, {"model_type": []}, {"quantization_config": 5}],
)
def test_settings_that_make_no_model_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model")
    set_config(path, **settings)
    with pytest.raises(SpecError, match="holds no causal language model"):
        load(path)


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(SpecError, match=r"holds no safetensors files, but pytorch_model\.bin, a pickle"):
        load(path)
