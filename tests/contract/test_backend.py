"""What every trainer backend does, whatever computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch

from rljob_contract.backend import BACKEND, BackendSubject, micro_batches_add_up_to_the_whole_batch
from rljob_contract.backend_steps import TOLERANCES, tolerance_of
from rljob_contract.check import Check, ContractBroken
from rljob_contract.samples import job_config
from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.registry import create_backend

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("Torch", {"threads": 1}),
    "float64": ("Torch", {"threads": 1, "dtype": "float64"}),
    "bfloat16": ("Torch", {"threads": 1, "dtype": "bfloat16"}),
    "Emulated": ("Emulated", {}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        made = tmp_path / str(len(list(tmp_path.iterdir())))
        made.mkdir()
        return made

    return make


def subject(kind: str, model: Path, folder: Callable[[], Path], **changes: Any) -> BackendSubject:
    name, options = BACKENDS[kind]
    config = job_config(model, trainer={"backend": name, "options": options})

    def create() -> TrainerBackend:
        backend = create_backend(config, rank=0, world_size=1, model_path=model)
        for method, change in changes.items():
            setattr(backend, method, MethodType(change, backend))
        return backend

    return BackendSubject(create, folder)


@pytest.mark.parametrize("check", BACKEND, ids=lambda check: check.name)
@pytest.mark.parametrize("kind", BACKENDS)
def test_contract(check: Check[BackendSubject], kind: str, model: Path, folder: Callable[[], Path]) -> None:
    check.run(subject(kind, model, folder))


def loses_one(backend: TorchBackend, samples: Sequence[TrainingSample]) -> None:
    """The first sample of each micro-batch is not learnt from."""
    TorchBackend.accumulate(backend, samples[1:])


def means_of_means(backend: TorchBackend, samples: Sequence[TrainingSample]) -> None:
    """Each micro-batch weighs the same, however many samples it has."""
    before = {name: gradient.clone() for name, gradient in backend.gradients().items()}
    TorchBackend.accumulate(backend, samples)
    for name, gradient in backend.gradients().items():
        earlier = before.get(name, torch.zeros_like(gradient))
        gradient.copy_(earlier + (gradient - earlier) / max(1, len(samples)))


def tells_the_last_loss(backend: TorchBackend, samples: Sequence[TrainingSample]) -> None:
    """Statistics are the last micro-batch's."""
    backend._sums.statistics.zero_()
    TorchBackend.accumulate(backend, samples)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (loses_one, "the weights differ by "),
        (means_of_means, "the weights differ by "),
        (tells_the_last_loss, "loss is "),
    ],
)
def test_a_wrong_sum_is_found_in_any_dtype(
    kind: str, wrong: Callable[..., None], words: str, model: Path, folder: Callable[[], Path]
) -> None:
    with pytest.raises(ContractBroken, match=f"in four micro-batches: {words}"):
        micro_batches_add_up_to_the_whole_batch(subject(kind, model, folder, accumulate=wrong))


def test_a_dtype_that_is_not_seen_in_the_weights_can_be_named() -> None:
    wide = {"w": torch.zeros(1, dtype=torch.float32), "count": torch.zeros(1, dtype=torch.int64)}
    assert tolerance_of(wide, None) == TOLERANCES["float32"]
    assert tolerance_of(wide, "bfloat16") == TOLERANCES["bfloat16"]
    assert tolerance_of({**wide, "n": torch.zeros(1, dtype=torch.bfloat16)}, None) == TOLERANCES["bfloat16"]
