"""`TrainerBackend`: the interface of the code that computes training steps on one rank of the trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_core.messages import StepStats, TrainingItem
from rljob_core.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One trajectory to train on.

    Attributes:
        item: the coordinator's data about the trajectory, for instance its advantage.
        trajectory: its tokens, loss mask and log-probabilities.
    """

    item: TrainingItem
    trajectory: Trajectory


class TrainerBackend(Protocol):
    """One rank of the trainer. The methods block, and all ranks call the same methods in the same order.

    `accumulate` adds up unnormalised sums; `finish_step` divides them by the normalisers of the whole step, which are
    known only then. So micro-batches that arrive one by one give the same gradient as the whole batch at once.
    """

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Load weights (`None`: the initial model's) and discard accumulated gradients."""

    def load_state(self, folder: str | None) -> None:
        """Load the optimizer's state and the random state from a checkpoint folder (`None`: start with new ones)."""

    def begin_step(self, step: int) -> None:
        """Start a step and discard accumulated gradients."""

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Run forward and backward over this rank's share of a micro-batch, which may be empty."""

    def finish_step(self) -> StepStats:
        """Normalise and clip the gradient, take the optimizer step, and return the step's statistics."""

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield the weights as (published name, tensor), one tensor at a time."""

    def random_state(self) -> str:
        """Return a digest of the random state."""

    def save(self, folder: str) -> None:
        """Write a checkpoint into an empty folder: the model in Hugging Face format, optimizer and random state."""
