"""Trainer backends and losses. This module is what authors of either import.

A backend of one's own is an `ArrayBackend`, whose weights are NumPy arrays; a `BackendBase`, which trains a Hugging
Face model with PyTorch; or implements the protocol `TrainerBackend`. A loss is a `Loss`. Names that this module does
not export may change in any release. Importing it loads no torch: `BackendBase` does, when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rljob_core.config import JobConfig
from rljob_core.errors import JobFailed, SpecError, WeightsRejected
from rljob_core.messages import StepStats
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_runtime.model.arrays import Arrays, checked_copies
from rljob_runtime.training.backends.arrays import ArrayBackend
from rljob_runtime.training.losses.loss import (
    MEAN_OF_SEQUENCE_MEANS,
    MEAN_OVER_MAX_TOKENS,
    MEAN_OVER_TOKENS,
    Average,
    Loss,
    LossSettings,
    LossTokens,
    StepTotals,
    TokenLosses,
)
from rljob_runtime.training.options import BackendOptions, TrainingOptions

if TYPE_CHECKING:
    from rljob_runtime.training.backends.base import BackendBase

__all__ = [
    "MEAN_OF_SEQUENCE_MEANS",
    "MEAN_OVER_MAX_TOKENS",
    "MEAN_OVER_TOKENS",
    "ArrayBackend",
    "Arrays",
    "Average",
    "BackendBase",
    "BackendOptions",
    "JobConfig",
    "JobFailed",
    "Loss",
    "LossSettings",
    "LossTokens",
    "SpecError",
    "StepStats",
    "StepTotals",
    "TokenLosses",
    "TrainerBackend",
    "TrainingOptions",
    "TrainingSample",
    "WeightsRejected",
    "checked_copies",
]


def __getattr__(name: str) -> Any:
    if name != "BackendBase":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rljob_runtime.training.backends.base import BackendBase

    return BackendBase
