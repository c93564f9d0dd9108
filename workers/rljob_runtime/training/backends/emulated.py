"""The trainer backend `Emulated`, which sleeps as long as training would take, and computes nothing.

Its weights are one tiny tensor that counts the steps, so that manifests, weight files and checkpoints flow as with a
real model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xxhash

from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.training.backends.arrays import ArrayBackend
from rljob_runtime.training.options import EmulatedBackendOptions

TENSOR = "emulated.steps"
STEPS = "steps"


class EmulatedBackend(ArrayBackend):
    """One rank of an emulated trainer. Any rank may write the checkpoint, which is the same of all.

    Args:
        options: what training takes.
        world_size: ranks that share the work.
        sleep: blocks for so many seconds.
    """

    def __init__(
        self, options: EmulatedBackendOptions, *, world_size: int, sleep: Callable[[float], None]
    ) -> None:
        # Steps since a fresh state stand for optimizer and random state.
        super().__init__({TENSOR: np.zeros(4, np.float32)}, state={STEPS: np.zeros((), np.int64)})
        self._options = options
        self._world_size = world_size
        self._sleep = sleep

    def learn(self, sample: TrainingSample) -> tuple[float, int]:
        """Nothing; all tokens count, those of prompts too."""
        return 0.0, sum(len(segment.tokens) for segment in sample.trajectory.segments)

    def update(self, sequences: int) -> None:  # noqa: ARG002
        """Count a step."""
        self.weights[TENSOR] = self.weights[TENSOR] + 1
        self.state[STEPS] = self.state[STEPS] + 1

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Take the time of this rank's part of a micro-batch."""
        before = self._count.tokens
        super().accumulate(samples)
        tokens = self._count.tokens - before
        spent = self._options.seconds_per_trajectory * len(samples) + self._options.seconds_per_token * tokens
        self._spend(spent / self._world_size)

    def finish_step(self) -> StepStats:
        """Take the time of a step's end, and count it."""
        self._spend(self._options.step_seconds)
        return super().finish_step()

    def random_state(self) -> str:
        """Digest of the state."""
        return xxhash.xxh3_128_hexdigest(str(int(self.state[STEPS])).encode())

    def _spend(self, seconds: float) -> None:
        if seconds:
            self._sleep(seconds)
