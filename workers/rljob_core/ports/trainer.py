"""`TrainerBackend`: one rank that turns micro-batches into new weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_core.messages import StepStats, TrainingItem
from rljob_core.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One trajectory with what training needs of it."""

    item: TrainingItem
    trajectory: Trajectory


class TrainerBackend(Protocol):
    """One rank of the trainer. Blocking; all ranks call the same methods in the same order.

    Only sums are accumulated; `finish_step` divides once by the normalisers known only then, so that streamed
    micro-batches give the same gradient as the whole batch.
    """

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take these weights (`None`: the initial model's) and forget what was accumulated."""

    def load_state(self, folder: str | None) -> None:
        """Take optimizer and random state from a checkpoint folder (`None`: fresh)."""

    def begin_step(self, step: int) -> None:
        """Start step `step` with nothing accumulated."""

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Forward and backward over a micro-batch (possibly empty on this rank)."""

    def finish_step(self) -> StepStats:
        """Normalise, clip, take the optimizer step."""

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The weights under their published names, one at a time."""

    def random_state(self) -> str:
        """Digest of the random state."""

    def save(self, folder: str) -> None:
        """Write a checkpoint into an empty folder: Hugging Face format, optimizer and random state."""
