"""Refuses to commit statistics and weights that are not finite, and names the trajectories that an error came from.

The job ends with such an error. The next attempt of a trainer would get the same trajectories and the same weights, so
that most of these errors would come again, until the attempts are used up, with less to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljob_core.errors import JobFailed, NotFinite
from rljob_core.failures import Reason
from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.model.tensor_files import TensorStream

_NAMED = 32
"""Trajectories that an error names at most; it says how many there are besides."""
_REMEDY = "Look at what these trajectories hold, or lower spec.algorithm.learningRate or spec.algorithm.kl"


def in_micro_batch(
    error: JobFailed | MemoryError, *, step: int, number: int, samples: Sequence[TrainingSample]
) -> JobFailed:
    """A micro-batch's error, with the micro-batch's trajectories and their sizes."""
    named = [
        f"{s.trajectory.id} ({sum(len(g.tokens) for g in s.trajectory.segments)} tokens)" for s in samples
    ]
    if isinstance(error, JobFailed):
        what, reason = str(error), error.reason
    else:
        what, reason = f"step {step}: out of memory ({error})", Reason.OUT_OF_MEMORY
    return JobFailed(f"{what}. It was micro-batch {number} of step {step}: {_listed(named)}", reason)


def in_step(error: NotFinite, *, step: int, fed: Sequence[Sequence[str]]) -> JobFailed:
    """A step's error, with the trajectories of the micro-batch that it comes from, or of the whole batch.

    Args:
        error: of the backend.
        step: that was to be finished.
        fed: ids of the trajectories of each of its micro-batches.
    """
    number = error.micro_batch
    if number is None or number >= len(fed):
        source = f"its batch: {_listed([trajectory for part in fed for trajectory in part])}"
    else:
        source = f"it began with the loss of micro-batch {number} of {len(fed)}: {_listed(fed[number])}"
    return JobFailed(
        f"step {step}: {error}, so that version {step + 1} is not committed; {source}. {_REMEDY}",
        error.reason,
    )


def checked(stats: StepStats) -> StepStats:
    """A step's statistics, of which those that only people read are made finite, since JSON has no other numbers.

    Raises:
        NotFinite: the loss or the gradient's norm is not finite.
    """
    for what, value in (("the loss", stats.loss), ("the gradient's norm", stats.grad_norm)):
        if not math.isfinite(value):
            raise NotFinite(f"{what} ({value})")
    return replace(
        stats,
        kl=_shown(stats.kl),
        clip_fraction=_shown(stats.clip_fraction),
        importance_mean=_shown(stats.importance_mean),
        learning_rate=_shown(stats.learning_rate),
        entropy=None if stats.entropy is None else _shown(stats.entropy),
    )


def finite_tensors(tensors: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Pass tensors on, each checked for finite values as it is taken.

    Raises:
        NotFinite: on iteration, at the first tensor that holds a NaN or an infinity.
    """
    found = _finite(tensors)
    return TensorStream(tensors.layouts, found) if isinstance(tensors, TensorStream) else found


def _finite(tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, tensor in tensors:
        if not _is_finite(tensor):
            raise NotFinite(f"the weight {name}")
        yield name, tensor
        del tensor  # before the next is put together


def _is_finite(tensor: Any) -> bool:
    """Whether a tensor, of torch or NumPy, holds finite numbers only.

    A sum is one pass without memory of its own. It may overflow although all is finite: then each element is looked at.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(float(tensor.sum())):
            return True
    each = tensor.isfinite() if hasattr(tensor, "isfinite") else np.isfinite(tensor)
    return bool(each.all())


def _shown(statistic: float) -> float:
    """A statistic that JSON can express: 0 for NaN, the largest number for an infinity."""
    return float(np.nan_to_num(statistic))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
