"""What a model's folder says is read without loading the model, and what does not fit it is refused before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError
from rljob_runtime.engines.factory import check_length
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.engines.vllm.factory import check_tensor_parallel
from rljob_runtime.model.identity import model_identity
from rljob_runtime.model.settings import (
    check_tokenizer,
    model_settings,
    tensor_shapes,
    weight_files,
)
from rljob_runtime.model.tensor_files import read_model
from rljob_runtime.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    """A copy whose files a test may change."""
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(file: Path, **values: Any) -> None:
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | values))


def test_sizes_are_those_of_the_model(model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    found = model_settings(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    assert found.architecture == type(loaded).__name__
    assert found.vocabulary == loaded.get_input_embeddings().weight.shape[0]
    assert (found.heads, found.key_heads) == (4, 2)
    assert (found.context, found.dtype) == (256, "float32")
    assert tensor_shapes(model) == {
        name: tuple(tensor.shape)
        for name, tensor in loaded.state_dict().items()
        if not (found.tied and name == "lm_head.weight")
    }


@pytest.mark.parametrize("files", [1, 2])
def test_a_second_set_of_weights_beside_a_models_own_does_not_count(copied: Path, files: int) -> None:
    """Mistral's models come with `consolidated.safetensors` too, whose tensors have other names."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    own = load_file(copied / "model.safetensors")
    if files == 2:
        loaded = AutoModelForCausalLM.from_pretrained(copied)
        (copied / "model.safetensors").unlink()
        loaded.save_pretrained(copied, max_shard_size=sum(t.nbytes for t in own.values()) * 2 // 3)
    save_file(
        {f"layers.{name}": tensor + 1 for name, tensor in own.items()}, copied / "consolidated.safetensors"
    )
    assert len(weight_files(copied)) == files
    assert tensor_shapes(copied) == {name: tuple(tensor.shape) for name, tensor in own.items()}
    read = dict(read_model(copied))
    assert read.keys() == own.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in own.items())


def test_files_of_any_name_count_where_none_is_a_models(tmp_path: Path) -> None:
    for name in ("000001.safetensors", "000000.safetensors", "other.bin"):
        (tmp_path / name).touch()
    assert [file.name for file in weight_files(tmp_path)] == ["000000.safetensors", "000001.safetensors"]


def test_an_index_that_names_missing_files_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "model-00001-of-00002.safetensors")
    index = copied / "model.safetensors.index.json"
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*names model-00002-of-00002\.safetensors"):
        tensor_shapes(copied)
    index.write_text("{}")
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*holds no weight_map"):
        next(read_model(copied))


def test_of_several_modalities_the_one_that_writes_text_counts(copied: Path) -> None:
    inner = json.loads((copied / "config.json").read_text())
    outer = {"model_type": "seen", "architectures": ["SeenForConditionalGeneration"], "text_config": inner}
    (copied / "config.json").write_text(json.dumps(outer))
    found = model_settings(copied)
    assert (found.architecture, found.heads) == ("SeenForConditionalGeneration", 4)


def test_a_folder_without_a_model_is_refused(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*config\.json is missing"):
        model_settings(tmp_path / "nowhere")
    change(copied / "config.json", vocab_size=None)
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*gives no vocab_size"):
        model_settings(copied)
    (copied / "config.json").write_text("{")
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*cannot be read"):
        model_settings(copied)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(copied: Path) -> None:
    settings = model_settings(copied)
    check_tokenizer(settings)
    change(copied / "config.json", vocab_size=settings.vocabulary - 1)
    with pytest.raises(SpecError, match=rf"spec\.model\.uri: .*up to {settings.vocabulary - 1}.*resize"):
        check_tokenizer(model_settings(copied))


def test_a_special_token_beyond_the_model_counts_where_it_is_used(copied: Path) -> None:
    """Gemma 3's smallest model, which reads no pictures, has the tokenizer of those that do."""
    settings = model_settings(copied)
    tokens = json.loads((copied / "tokenizer.json").read_text())
    picture = {
        **tokens["added_tokens"][0],
        "id": settings.vocabulary,
        "content": "<picture>",
        "special": True,
    }
    change(copied / "tokenizer.json", added_tokens=[*tokens["added_tokens"], picture])
    check_tokenizer(settings)
    (copied / "chat_template.jinja").write_text("{{ messages }}<picture>")
    with pytest.raises(SpecError, match=rf"spec\.model\.uri: .*up to {settings.vocabulary}.*resize"):
        check_tokenizer(settings)


def test_sizes_of_older_models_have_other_names(tmp_path: Path) -> None:
    sizes = {"vocab_size": 7, "n_head": 12, "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], **sizes}))
    found = model_settings(tmp_path)
    assert (found.heads, found.key_heads, found.context) == (12, 12, 1024)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_heads_are_split_evenly(model: Path, size: int) -> None:
    # Two heads of keys are copied to four devices.
    check_tensor_parallel(model_settings(model), size)


@pytest.mark.parametrize("size", [3, 5, 8])
def test_an_uneven_split_of_the_heads_is_refused(model: Path, size: int) -> None:
    with pytest.raises(
        SpecError, match=rf"tensorParallelSize: {size} does not divide .*4 .*write one of 1, 2"
    ):
        check_tensor_parallel(model_settings(model), size)


def test_a_length_beyond_the_context_is_refused(model: Path) -> None:
    check_length(model_settings(model), None)
    check_length(model_settings(model), 256)
    with pytest.raises(SpecError, match=r"maxLength: 257 is beyond .*at most 256"):
        check_length(model_settings(model), 257)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vLLM", {"tensorParallelSize": 3}, r"spec\.rollout\.engine\.options\.tensorParallelSize: 3 "),
        ("vLLM", {"maxLength": 300}, r"spec\.rollout\.engine\.options\.maxLength: 300 "),
        ("vLLM", {"kvCacheGib": 1}, r"spec\.rollout\.engine\.options\.kvCacheGib: unknown: .*kvCacheGiB"),
        ("HTTP", {}, r"spec\.rollout\.engine\.options\.url: "),
        ("HTTP", {"url": "server:8000"}, r"spec\.rollout\.engine\.options\.url: "),
        ("HTTP", {"url": "http://server", "maxLength": 300}, r"options\.maxLength: 300 "),
    ],
)
def test_engines_refuse_before_they_load(
    model: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        create_engine(name, model_path=model, options=options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "[" * 100_000),
        ("config.json", "null"),
        ("config.json", '{"vocab_size": 50, "architectures": {"a": 1}}'),
        ("tokenizer.json", '{"added_tokens": [{}]}'),
        ("tokenizer.json", '{"model": {"vocab": {"a": []}}}'),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", "null"),
        ("tokenizer_config.json", '{"extra_special_tokens": 5}'),
        ("tokenizer_config.json", '{"chat_template": [{}]}'),
        ("tokenizer_config.json", '{"chat_template": 5}'),
        ("generation_config.json", '{"eos_token_id": ["x"]}'),
    ],
)
def test_settings_of_any_kind_cost_a_message(copied: Path, name: str, text: str) -> None:
    (copied / name).write_text(text)
    model_identity(copied)

    def read() -> None:
        check_tokenizer(model_settings(copied))
        Tokenizer(copied)

    with pytest.raises(SpecError, match=r"spec\.model\.uri: "):
        read()
