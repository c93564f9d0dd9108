"""A base for trainer backends of one's own whose weights are NumPy arrays by name.

A subclass computes what a trajectory adds to the sums of a step, and takes the optimizer's step from them. This class
loads and publishes weights, writes and reads checkpoints, resets the sums, and reports the step's statistics. A backend
on PyTorch begins with `BackendBase` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from rljob_core.errors import CheckpointDamaged, SpecError, WeightsRejected
from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.model.arrays import Arrays, checked_copies
from rljob_runtime.training.step_count import StepCount

_STATE = "state.npz"
#: Before names in it, some of which would mean something to numpy.
_PREFIX = "state."


class ArrayBackend(ABC):
    """One rank of a trainer.

    Args:
        initial: the initial model's weights by published name.
        state: what the optimizer keeps between steps, as it is at first: moments, counts.
        world_size: ranks; there may be one, since ranks do not add up their sums here.

    Attributes:
        weights: what is trained; `update` changes or replaces them.
        state: as above.
        sums: zeros like the weights at the beginning of a step, to which `learn` adds.

    Raises:
        SpecError: there are more ranks.
    """

    def __init__(self, initial: Arrays, *, state: Arrays, world_size: int = 1) -> None:
        if world_size > 1:
            raise SpecError(
                "spec.trainer.numProcPerNode", f"the backend has one rank, not {world_size}: set it to 1"
            )
        self._initial, self._fresh = initial, state
        self.load(None)
        self.load_state(None)

    # ------------------------------------------------------------------------------------------ what differs

    @abstractmethod
    def learn(self, sample: TrainingSample) -> tuple[float, int]:
        """Add what a trajectory teaches to `sums`.

        Returns:
            Its loss, and how many tokens it was trained on.
        """

    @abstractmethod
    def update(self, sequences: int) -> None:
        """Take the optimizer's step, from `sums` over so many trajectories (1 where there was none)."""

    def random_state(self) -> str:
        """Digest of what is random; here nothing is."""
        return ""

    # ------------------------------------------------------------------------------------------ the protocol

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take these weights (`None`: the initial ones) and forget what was accumulated.

        Raises:
            WeightsRejected: they are not this model's; the old ones stay.
        """
        given = self._initial.items() if tensors is None else tensors
        self.weights = checked_copies(given, like=self._initial)
        self.begin_step(0)

    def load_state(self, folder: str | None) -> None:
        """Take the optimizer's state from a checkpoint folder (`None`: fresh).

        Raises:
            CheckpointDamaged: the folder holds none of this model.
        """
        if folder is None:
            self.state = {name: array.copy() for name, array in self._fresh.items()}
            return
        try:
            with (Path(folder) / _STATE).open("rb") as file, np.load(file) as saved:
                named = [(name.removeprefix(_PREFIX), array) for name, array in saved.items()]
            self.state = checked_copies(named, like=self._fresh)
        except (OSError, ValueError, EOFError, BadZipFile, WeightsRejected) as error:
            raise CheckpointDamaged(f"checkpoint {folder} does not load: {error}") from error

    def begin_step(self, step: int) -> None:
        """Start step `step` with nothing accumulated."""
        self.sums = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self._loss, self._count = 0.0, StepCount(step)

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Learn from each sample of a micro-batch."""
        learned = [self.learn(sample) for sample in samples]
        self._loss += sum(loss for loss, _ in learned)
        self._count.add(samples, tokens=sum(tokens for _, tokens in learned))

    def finish_step(self) -> StepStats:
        """Take the optimizer's step."""
        sequences = max(1, self._count.sequences)
        self.update(sequences)
        return self._count.stats(loss=self._loss / sequences)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The weights."""
        yield from self.weights.items()

    def save(self, folder: str) -> None:
        """Write the optimizer's state into an empty folder."""
        named: dict[str, Any] = {_PREFIX + name: array for name, array in self.state.items()}
        np.savez(Path(folder) / _STATE, **named)
