"""Steps of trainer backends, and how much two that should be the same may differ.

A backend shows itself by its weights and statistics, so steps are compared by those. Weights are compared in parts of
the step's own length, since a step is small beside what it changes. AdamW divides a gradient by its own size, so that
where it is nearly zero rounding decides about its direction: what two steps differ by is a multiple of the gradients'
rounding, and yet far from what a lost sample or a wrong normaliser makes, a quarter and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_contract.check import ContractBroken, require
from rljob_core.messages import StepStats
from rljob_core.ports import TrainerBackend, TrainingSample

Weights = Mapping[str, Any]
"""Torch CPU tensors by name, in the dtypes in which they are published."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much may come of rounding.

    Attributes:
        statistics: of loss and gradient norm, relative, where sums are taken in another order.
        step: of the weights' change, in parts of it, where sums are taken in another order.
        repeated: of the weights' change, in parts of it, where the very same step is taken again.
    """

    statistics: float
    step: float
    repeated: float


TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(statistics=1e-10, step=1e-6, repeated=1e-10),
    "float32": Tolerance(statistics=1e-5, step=1e-2, repeated=1e-5),
    "bfloat16": Tolerance(statistics=2e-2, step=1e-1, repeated=1e-2),
}
"""By what a backend computes in."""


def tolerance_of(held: Weights, dtype: str | None) -> Tolerance:
    """What fits a backend that computes in a dtype, or if that is not known in the narrowest that it publishes."""
    import torch

    if dtype is None:
        widths = {torch.finfo(t.dtype).eps: t.dtype for t in held.values() if t.is_floating_point()}
        dtype = str(widths[max(widths)]).removeprefix("torch.") if widths else "float32"
    return TOLERANCES.get(dtype, TOLERANCES["bfloat16"])


def feed(
    backend: TrainerBackend, micro_batches: Iterable[Sequence[TrainingSample]], *, step: int = 0
) -> StepStats:
    """One step over these micro-batches."""
    backend.begin_step(step)
    for micro_batch in micro_batches:
        backend.accumulate(micro_batch)
    return backend.finish_step()


def weights(backend: TrainerBackend) -> Weights:
    """Copies of the weights.

    Raises:
        ContractBroken: there are none, or two have one name.
    """
    import torch

    held = dict[str, Any]()
    for name, tensor in backend.tensors():
        require(name not in held, f"tensors() gives {name} twice")
        held[name] = torch.as_tensor(tensor).detach().cpu().clone()
    require(bool(held), "tensors() gives none")
    return held


def stored(held: Weights) -> list[tuple[str, Any]]:
    """Weights as a weight store gives them: torch CPU tensors by name, copied."""
    return [(name, tensor.clone()) for name, tensor in held.items()]


def finite(held: Weights) -> bool:
    """Whether all of them are."""
    return all(bool(tensor.isfinite().all()) for tensor in held.values())


def distance(one: Weights, other: Weights) -> float:
    """‖one − other‖ over all tensors.

    Raises:
        ContractBroken: they have not the same names.
    """
    if one.keys() != other.keys():
        names = ", ".join(sorted(one.keys() ^ other.keys())[:3])
        raise ContractBroken(f"tensors() does not give the same names each time: {names}")
    return math.sqrt(sum(float((one[n].double() - other[n].double()).square().sum()) for n in one))


def require_same_step(
    found: Weights, expected: Weights, before: Weights, *, within: float, what: str
) -> None:
    """Raise unless two steps changed the same weights by the same, up to a part of the change."""
    length = distance(expected, before)
    gap = distance(found, expected)
    require(
        gap <= within * length,
        f"{what}: the weights differ by {gap / length if length else gap:.1%} of a step, where rounding makes "
        f"{within:.1g} of it at most",
    )


def require_same_statistics(found: StepStats, expected: StepStats, *, within: float, what: str) -> None:
    """Raise unless two steps report the same loss and gradient norm; a backend may report none."""
    for statistic, least in (
        ("loss", 1.0),
        ("grad_norm", 0.0),
    ):  # advantages of both signs may leave a loss near zero
        mine, theirs = getattr(found, statistic), getattr(expected, statistic)
        require(
            abs(mine - theirs) <= within * max(least, abs(theirs)),
            f"{what}: {statistic} is {mine:.7g}, not {theirs:.7g}",
        )


def require_equal(found: Weights, expected: Weights, what: str) -> None:
    """Raise unless weights are the same to the last bit."""
    distance(found, expected)
    other = [name for name in expected if not found[name].equal(expected[name])]
    require(
        not other,
        f"{what}: {len(other)} of {len(expected)} tensors differ, {', '.join(other[:3])} among them",
    )
