"""Options of the backend Torch: bfloat16, checkpointed activations, an offloaded reference; and which are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rljob_contract.samples import job_config, random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import JobFailed, SpecError
from rljob_core.failures import Reason
from rljob_core.spec.training import INTERCHANGEABLE
from rljob_runtime.model.causal import decoder_layers
from rljob_runtime.roles.trainer.poison import in_micro_batch
from rljob_runtime.training.backends.base import explain_out_of_memory
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.packing.rows import Row
from rljob_runtime.training.registry import (
    BACKENDS,
    check_backend,
    create_backend,
    find_backend,
    smallest_projection,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def backend(model: Path, *, algorithm: dict[str, Any] | None = None, **options: Any) -> TorchBackend:
    config = job_config(model, trainer={"options": {"threads": 1, **options}}, algorithm=algorithm)
    made = create_backend(config, rank=0, world_size=1, model_path=model)
    assert isinstance(made, TorchBackend)
    return made


def weights(trainer: TorchBackend) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.tensors()}


def step(trainer: TorchBackend, number: int = 0, *, seed: int | None = None) -> None:
    trainer.begin_step(number)
    trainer.accumulate(random_samples(8, seed=number if seed is None else seed))
    trainer.finish_step()


@contextmanager
def counted(modules: dict[str, Any]) -> Iterator[dict[str, int]]:
    """How often each module computes."""
    counts = dict.fromkeys(modules, 0)
    hooks = []
    for name, module in modules.items():

        def count(*_: Any, name: str = name) -> None:
            counts[name] += 1

        hooks.append(module.register_forward_pre_hook(count))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def test_fresh_data_cost_one_forward_each_and_no_reference(model: Path) -> None:
    """The engine's log-probabilities are the old policy's: nothing is computed for them."""
    trainer = backend(model, forwardTokens=40)
    assert trainer._frozen is None
    batches = trainer._batches_of([row for row in map(_row, random_samples(12)) if row.advantage], 0)
    trainer.begin_step(0)
    with counted({"policy": trainer._model}) as counts:
        trainer.accumulate(random_samples(12))
        trainer.finish_step()
    assert counts == {"policy": len(batches)}
    assert len(batches) > 2


def _row(sample: Any) -> Row:
    from rljob_runtime.training.packing.rows import row

    return row(sample)


def test_a_divergence_costs_one_forward_more_of_the_reference(model: Path) -> None:
    trainer = backend(model, algorithm={"kl": 0.1}, forwardTokens=40)
    trainer.begin_step(0)
    with trainer._frozen.ready() as reference:
        modules = {"policy": trainer._model, "reference": reference}
    with counted(modules) as counts:
        trainer.accumulate(random_samples(12))
        trainer.finish_step()
    assert counts["policy"] == counts["reference"] > 2


def test_an_offloaded_reference_goes_home_after_each_use(model: Path) -> None:
    trainer = backend(model, algorithm={"kl": 0.1}, offloadReference=True)
    parameters = list(trainer._frozen._model.parameters())
    home = [p.data_ptr() for p in parameters]
    step(trainer)
    assert [p.data_ptr() for p in parameters] == home


def test_checkpointed_activations_give_the_same_gradient_and_compute_layers_twice(model: Path) -> None:
    found = []
    for option in (False, True):
        trainer = backend(model, activationCheckpointing=option, dtype="float64")
        layers = dict(decoder_layers(trainer._model))
        attention = {name: layer.self_attn for name, layer in layers.items()}
        trainer.begin_step(0)
        with counted(attention) as counts:
            trainer.accumulate(random_samples(8))
        found.append(({n: g.clone() for n, g in trainer.gradients().items()}, set(counts.values())))
    (plain, (once,)), (checkpointed, (twice,)) = found
    assert twice == 2 * once
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient)


# ---- bfloat16


def test_bfloat16_keeps_updates_that_it_could_not_hold(model: Path) -> None:
    """An update of 1e-5 is lost in a bfloat16 weight of 0.1; a hundred of them are not."""
    trainer = backend(model, dtype="bfloat16", algorithm={"learningRate": 1e-5})
    before = weights(trainer)
    assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16}
    name = "model.layers.0.mlp.gate_proj.weight"
    wide = trainer._optimized[name].detach().clone()
    for number in range(3):
        step(trainer, number, seed=0)
    moved = (trainer._optimized[name].detach() - wide).abs()
    assert float(moved.median()) > 1e-5
    assert trainer._model.get_parameter(name).equal(trainer._optimized[name].bfloat16())


def test_gradients_of_many_micro_batches_are_added_up_in_float32(model: Path) -> None:
    trainer = backend(model, dtype="bfloat16", forwardTokens=1)
    trainer.begin_step(0)
    trainer.accumulate(random_samples(16))
    trainer.normalise()
    assert {g.dtype for g in trainer.gradients().values()} == {torch.float32}
    assert all(p.grad is None for p in trainer._model.parameters())
    narrow = {n: g.clone() for n, g in trainer.gradients().items()}
    exact = backend(model, dtype="float64")
    exact.begin_step(0)
    exact.accumulate(random_samples(16))
    exact.normalise()
    for name, gradient in exact.gradients().items():
        assert float((narrow[name].double() - gradient).norm() / gradient.norm()) < 0.05, name


def test_bfloat16_restores_its_wide_weights(model: Path, tmp_path: Path) -> None:
    trainer = backend(model, dtype="bfloat16")
    for number in range(2):
        step(trainer, number)
    trainer.save(str(tmp_path))
    saved = weights(trainer)
    step(trainer, 2)
    expected = {n: p.detach().clone() for n, p in trainer._optimized.items()}
    other = backend(model, dtype="bfloat16")
    other.load(saved.items())
    other.load_state(str(tmp_path))
    step(other, 2)
    assert all(p.detach().equal(expected[name]) for name, p in other._optimized.items())


def test_bfloat16_learns(model: Path) -> None:
    trainer = backend(model, dtype="bfloat16", algorithm={"learningRate": 3e-3, "importanceSampling": "None"})
    for number in range(8):
        step(trainer, number, seed=0)
    rewarded = [s for s in random_samples(8, seed=0) if s.item.advantage > 0]
    before, after = backend(model, dtype="bfloat16"), trainer
    assert _likelihood(after, rewarded) > _likelihood(before, rewarded)


def _likelihood(trainer: TorchBackend, samples: list[Any]) -> float:
    rows = [_row(sample) for sample in samples]
    with torch.no_grad():
        return float(trainer._log_probabilities(trainer._model, trainer._batch(rows), rows).mean())


# ---- refusals


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory_names_the_batch_and_what_to_lower(error: Exception) -> None:
    with pytest.raises(JobFailed) as caught, explain_out_of_memory(sequences=3, tokens=999, step=7):
        raise error
    message = str(caught.value)
    assert all(
        word in message
        for word in ("step 7", "3 sequences", "999 tokens", "microBatchTokens", "forwardTokens")
    )
    assert "activationCheckpointing" in message
    # The error names fields that the user may lower, but the manifest is not what is wrong.
    assert in_micro_batch(caught.value, step=7, number=0, samples=[]).reason is Reason.OUT_OF_MEMORY


def test_any_other_error_stays_what_it_is() -> None:
    with (
        pytest.raises(RuntimeError, match="shapes differ"),
        explain_out_of_memory(sequences=1, tokens=1, step=0),
    ):
        raise RuntimeError("shapes differ")


OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
from rljob_contract.samples import job_config, sample, segment
from rljob_core.errors import JobFailed
from rljob_core.trajectory import Source
from rljob_runtime.training.registry import create_backend
model = Path(sys.argv[1])
config = job_config(model, trainer={"options": {"threads": 1}, "microBatchTokens": 10**9})
trainer = create_backend(config, rank=0, world_size=1, model_path=model)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
turn = [segment(Source.PROMPT, [3]), segment(Source.MODEL, [5] * 200)]
trainer.begin_step(4)
try:
    trainer.accumulate([sample(f"g{n}.0", turn, advantage=1.0) for n in range(2000)])
except JobFailed as error:
    print(error)
"""


def test_a_process_that_runs_out_of_memory_says_so(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(model)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "step 4: out of memory in the forward and backward of 2000 sequences" in done.stdout, done.stderr


def test_more_ranks_than_trajectories_are_refused() -> None:
    config = job_config(Path("model"), trainer={"numNodes": 20, "numProcPerNode": 8})
    with pytest.raises(SpecError, match="160 ranks would share 128 trajectories") as caught:
        check_backend(config.spec)
    assert caught.value.path == "spec.trainer.numNodes"


@pytest.mark.parametrize(
    ("trainer", "path"),
    [
        ({"backend": "DeepSpeed", "options": {"zeroStage": 4}}, "spec.trainer.options.zeroStage"),
        ({"backend": "DeepSpeed", "options": {"dtype": "float64"}}, "spec.trainer.options.dtype"),
        ({"backend": "FSDP", "options": {"zeroStage": 2}}, "spec.trainer.options.zeroStage"),
        (
            {"backend": "FSDP", "options": {"activationCheckpointing": 1}},
            "spec.trainer.options.activationCheckpointing",
        ),
    ],
)
def test_options_of_another_backend_are_refused(trainer: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_backend(job_config(Path("model"), trainer=trainer).spec)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("settings", "smallest"),
    [
        (
            {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 96},
            16,
        ),
        ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32, "intermediate_size": 48}, 48),
        ({"hidden_size": 64, "num_attention_heads": 4}, 64),
        ({"d_model": 64}, None),
    ],
)
def test_the_smallest_projection(settings: dict[str, int], smallest: int | None) -> None:
    assert smallest_projection(settings) == smallest


def test_checkpoints_are_exchanged_by_the_backends_that_train_a_model() -> None:
    assert {name for name in BACKENDS.offers() if find_backend(name).trains_model} == set(INTERCHANGEABLE)
