"""Adapters: first values, merging, training them alone, and that engines compute what the trainer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from rljob_contract.samples import job_config, random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import JobFailed, SpecError, WeightsRejected
from rljob_runtime.model.lora_weights import initial_adapter, merged
from rljob_runtime.model.tensor_files import read_model
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.registry import check_backend, create_backend
from rljob_runtime.weights.create import MergedWeights, open_store, open_transport

LORA = {"rank": 4, "alpha": 8.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def backend(
    model: Path, *, options: dict[str, Any] | None = None, lora: dict[str, Any] = LORA, **algorithm: Any
) -> TorchBackend:
    trainer = {"options": {"threads": 1, **(options or {})}}
    config = job_config(model, trainer=trainer, algorithm=algorithm, lora=lora)
    made = create_backend(config, rank=0, world_size=1, model_path=model)
    assert isinstance(made, TorchBackend)
    return made


def step(trainer: TorchBackend, number: int = 0) -> None:
    trainer.begin_step(number)
    trainer.accumulate(random_samples(8, seed=number))
    trainer.finish_step()


def weights(trainer: TorchBackend) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.tensors()}


def test_first_values_depend_on_name_and_seed_only() -> None:
    a = initial_adapter("layers.0.q.lora_A.weight", (4, 16), seed=3)
    assert a.equal(initial_adapter("layers.0.q.lora_A.weight", (4, 16), seed=3))
    assert not a.equal(initial_adapter("layers.0.q.lora_A.weight", (4, 16), seed=4))
    assert not a.equal(initial_adapter("layers.1.q.lora_A.weight", (4, 16), seed=3))
    assert float(a.abs().max()) <= 0.25
    assert float(a.std()) == pytest.approx(0.25 / 3**0.5, rel=0.3)
    assert not initial_adapter("layers.0.q.lora_B.weight", (16, 4), seed=3).any()


def test_merging_adds_the_scaled_product_and_leaves_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    base = {"q.weight": torch.randn(6, 5, generator=generator), "norm.weight": torch.ones(5)}
    up, down = torch.randn(6, 2, generator=generator), torch.randn(2, 5, generator=generator)
    adapters = {"q.lora_A.weight": down, "q.lora_B.weight": up}
    found = dict(merged(base.items(), adapters, alpha=3.0))
    torch.testing.assert_close(found["q.weight"], base["q.weight"] + 1.5 * up @ down)
    assert found["norm.weight"] is base["norm.weight"]
    narrow = {name: tensor.bfloat16() for name, tensor in base.items()}
    assert dict(merged(narrow.items(), adapters, alpha=3.0))["q.weight"].dtype == torch.float32


@pytest.mark.parametrize("spoil", ["half", "shape", "unknown"])
def test_adapters_of_another_model_are_refused(spoil: str) -> None:
    base = {"q.weight": torch.zeros(6, 5)}
    adapters = {"q.lora_A.weight": torch.zeros(2, 5), "q.lora_B.weight": torch.zeros(6, 2)}
    if spoil == "half":
        del adapters["q.lora_B.weight"]
    elif spoil == "shape":
        adapters["q.lora_A.weight"] = torch.zeros(2, 7)
    else:
        adapters["k.lora_A.weight"] = torch.zeros(2, 5)
    with pytest.raises(WeightsRejected, match=r"k\.lora_A" if spoil == "unknown" else r"q\.weight"):
        list(merged(base.items(), adapters, alpha=1.0))


def test_only_adapters_are_trained_and_published(model: Path) -> None:
    trainer = backend(model)
    before = {name: p.detach().clone() for name, p in trainer._model.named_parameters()}
    step(trainer)
    changed = {n for n, p in trainer._model.named_parameters() if not p.detach().equal(before[n])}
    assert changed == {name for name in before if ".lora_B." in name}  # A's gradient is zero while B is
    step(trainer, 1)
    changed = {n for n, p in trainer._model.named_parameters() if not p.detach().equal(before[n])}
    assert changed == {name for name in before if ".lora_" in name}
    published = weights(trainer)
    assert len(published) == 2 * 7 * 2  # two matrices for each of seven projections in two layers
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in published)
    held = {part.name for part in trainer._elements()}
    assert held == published.keys()


def test_the_reference_is_the_base_model_without_a_second_copy(model: Path) -> None:
    trainer = backend(model, kl=0.1)
    assert trainer._frozen is None
    trainer.begin_step(0)
    trainer.accumulate(random_samples(8))
    assert trainer.finish_step().kl == 0  # B is zero: the policy is the reference
    trainer.begin_step(1)
    trainer.accumulate(random_samples(8))
    first = trainer.finish_step().kl
    assert first > 0

    whole = backend(model, kl=0.1)
    whole.begin_step(0)
    whole.accumulate(random_samples(8))
    whole.finish_step()
    # The same policy against a reference of its own.
    plain = create_backend(
        job_config(model, trainer={"options": {"threads": 1}}, algorithm={"kl": 0.1}),
        rank=0,
        world_size=1,
        model_path=model,
    )
    plain.load(merged(read_model(model), weights(whole), alpha=8.0))
    plain.begin_step(1)
    plain.accumulate(random_samples(8))
    assert plain.finish_step().kl == pytest.approx(first, rel=1e-3)


@pytest.mark.parametrize("architecture", ["qwen2", "gemma2"])
def test_engines_read_what_the_trainer_computes(tmp_path: Path, architecture: str) -> None:
    model = tiny_model(tmp_path / "model", architecture=architecture)
    trainer = backend(model, learningRate=0.01)
    for number in range(3):
        step(trainer, number)
    store = open_store("Files", uri=str(tmp_path / "weights"))
    manifest = store.write(version=3, parent="", proposal=None, key="v3-a1", tensors=trainer.tensors())
    reader = MergedWeights(open_transport("Files", uri=str(tmp_path / "weights")), base=model, alpha=8.0)
    whole = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    missing, unknown = whole.load_state_dict(dict(reader.read(manifest)), strict=False)
    assert not unknown
    assert set(missing) <= {"lm_head.weight"}  # tied
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    trainer._model.set_attn_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(
            whole.eval()(tokens).logits, trainer._model(tokens).logits, atol=1e-5, rtol=1e-4
        )


def test_peft_loads_a_checkpoint(model: Path, tmp_path: Path) -> None:
    trainer = backend(model)
    step(trainer)
    trainer.save(str(tmp_path))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path)
    trainer._model.set_attn_implementation("sdpa")
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(tokens).logits, trainer._model(tokens).logits)


def test_initial_adapters_come_back(model: Path) -> None:
    trainer = backend(model)
    first = weights(trainer)
    step(trainer)
    trainer.load(None)
    assert all(first[name].equal(tensor) for name, tensor in weights(trainer).items())
    assert all(first[name].equal(tensor) for name, tensor in weights(backend(model)).items())


def test_a_checkpoint_of_another_rank_is_refused(model: Path, tmp_path: Path) -> None:
    backend(model).save(str(tmp_path))
    with pytest.raises(JobFailed, match="lora_A") as caught:
        backend(model, lora={"rank": 2, "alpha": 8.0}).load_state(str(tmp_path))
    assert "[4, 64] there, [2, 64] here" in str(caught.value)


def test_a_rank_above_the_smallest_layer_is_refused_before_anything_is_loaded(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())  # and no weights
    config = job_config(tmp_path, lora={"rank": 17})
    with pytest.raises(SpecError, match="17 is above 16") as caught:
        create_backend(config, rank=0, world_size=1, model_path=tmp_path)
    assert caught.value.path == "spec.model.lora.rank"


def test_a_backend_without_adapters_says_so() -> None:
    config = job_config(Path("model"), trainer={"backend": "Emulated"}, lora=LORA)
    with pytest.raises(SpecError) as caught:
        check_backend(config.spec)
    assert caught.value.path == "spec.model.lora"
