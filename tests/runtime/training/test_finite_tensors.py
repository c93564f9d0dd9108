"""Weights are looked at as they are written, whatever their dtype, and large ones are not taken for infinite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rljob_core.errors import NotFinite
from rljob_core.messages import StepStats
from rljob_runtime.model.tensor_files import TensorStream, layout_of
from rljob_runtime.roles.trainer.poison import checked, finite_tensors

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_is_found(dtype: torch.dtype, bad: float) -> None:
    tensor = torch.zeros(3, 1000, dtype=dtype)
    tensor[1, 7] = bad
    given = iter(finite_tensors([("good", torch.ones(2, dtype=dtype)), ("bad", tensor)]))
    assert next(given)[0] == "good"
    with pytest.raises(NotFinite, match="the weight bad is not finite"):
        next(given)
    with pytest.raises(NotFinite):
        list(finite_tensors([("bad", np.array([0, bad], np.float32))]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_whose_sum_overflows_pass(dtype: torch.dtype) -> None:
    tensor = torch.full((4096,), torch.finfo(dtype).max, dtype=dtype)
    assert [name for name, _ in finite_tensors([("large", tensor)])] == ["large"]
    assert len(list(finite_tensors([("large", np.full(64, np.finfo(np.float32).max))]))) == 1


@pytest.mark.parametrize(
    "tensor", [torch.zeros(0), torch.arange(5), torch.tensor(True), np.zeros((), np.int8)]
)
def test_what_is_always_finite_passes(tensor: Any) -> None:
    assert len(list(finite_tensors([("w", tensor)]))) == 1


def test_a_stream_stays_one() -> None:
    tensor = torch.ones(2)
    stream = finite_tensors(TensorStream([layout_of("w", tensor)], iter([("w", tensor)])))
    assert isinstance(stream, TensorStream)
    assert [layout.name for layout in stream.layouts] == ["w"]


def test_figures_that_only_people_read_become_finite() -> None:
    stats = checked(StepStats(loss=1.0, kl=float("inf"), importance_mean=float("nan")))
    assert (stats.loss, stats.kl, stats.importance_mean) == (1.0, np.finfo(float).max, 0.0)
    with pytest.raises(NotFinite, match=r"the gradient's norm \(inf\)"):
        checked(StepStats(grad_norm=float("inf")))
