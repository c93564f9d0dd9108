"""A trainer backend that takes the time training would take, and computes nothing.

Its weights are one tiny tensor that counts the steps, so that manifests, weight files and checkpoints flow as with a
real model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_core.errors import JobFailed, WeightsRejected
from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.backends import EmulatedOptions

TENSOR = "emulated.steps"
STATE = "emulated.json"


class EmulatedBackend:
    """One rank of an emulated trainer.

    Args:
        options: what training takes.
        world_size: ranks that share the work.
        sleep: blocks for so many seconds.
    """

    def __init__(self, options: EmulatedOptions, *, world_size: int, sleep: Callable[[float], None]) -> None:
        self._options = options
        self._world_size = world_size
        self._sleep = sleep
        self._weights: NDArray[np.float32] = np.zeros(4, np.float32)
        self._steps = 0  # since a fresh state; stands for optimizer and random state
        self._step = 0
        self._staleness: list[int] = []
        self._tokens = 0

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take these weights (`None`: the initial ones).

        Raises:
            WeightsRejected: they are not this backend's.
        """
        held = {TENSOR: np.zeros(4, np.float32)} if tensors is None else dict(tensors)
        if held.keys() != {TENSOR}:
            raise WeightsRejected(f"emulated weights are the tensor {TENSOR}, not {', '.join(held)}")
        weights = np.array(held[TENSOR], np.float32)
        if weights.shape != self._weights.shape:
            raise WeightsRejected(f"tensor {TENSOR} has the shape {weights.shape}, not {self._weights.shape}")
        self._weights = weights
        self._forget()

    def load_state(self, folder: str | None) -> None:
        """Take the state from a checkpoint folder (`None`: fresh).

        Raises:
            JobFailed: the folder holds no emulated state.
        """
        if folder is None:
            self._steps = 0
            return
        try:
            self._steps = int(json.loads((Path(folder) / STATE).read_text())["steps"])
        except (OSError, ValueError, KeyError) as error:
            raise JobFailed(f"checkpoint {folder} does not load: {error}") from error

    def begin_step(self, step: int) -> None:
        """Start step `step`."""
        self._step = step
        self._forget()

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Take the time of this rank's part of a micro-batch."""
        tokens = sum(len(segment.tokens) for s in samples for segment in s.trajectory.segments)
        self._tokens += tokens
        self._staleness += [self._step - s.trajectory.span.min for s in samples]
        spent = self._options.seconds_per_trajectory * len(samples) + self._options.seconds_per_token * tokens
        self._spend(spent / self._world_size)

    def finish_step(self) -> StepStats:
        """Take the time of a step's end, and count it."""
        self._spend(self._options.step_seconds)
        self._weights = self._weights + 1
        self._steps += 1
        return StepStats(
            tokens=self._tokens,
            staleness_mean=sum(self._staleness) / max(1, len(self._staleness)),
            staleness_max=max(self._staleness, default=0),
        )

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The weights."""
        yield TENSOR, self._weights

    def random_state(self) -> str:
        """Digest of the state."""
        return xxhash.xxh3_128_hexdigest(str(self._steps).encode())

    def save(self, folder: str) -> None:
        """Write the state into an empty folder."""
        (Path(folder) / STATE).write_text(json.dumps({"steps": self._steps}))

    def _spend(self, seconds: float) -> None:
        if seconds:
            self._sleep(seconds)

    def _forget(self) -> None:
        self._staleness.clear()
        self._tokens = 0
