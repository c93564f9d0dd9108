"""Trajectories from which no trainer can learn, and the trainer's backend that shows it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_core.trajectory import group_of
from rljob_runtime.training.backends.emulated import TENSOR, EmulatedBackend
from rljob_runtime.training.options import EmulatedBackendOptions

SYMPTOMS = {
    "loss": "the loss (nan)",
    "memory": "out of memory (",
    "weights": f"the weight {TENSOR}",
}
"""What the job's end says, by what goes wrong."""


@dataclass(frozen=True)
class Unlearnable:
    """What no trainer can learn from.

    Attributes:
        group: id of the group.
        what: goes wrong, a key of `SYMPTOMS`.
    """

    group: str
    what: str

    def is_named_in(self, message: str) -> bool:
        """Whether a job's end says what has gone wrong, and of which trajectory."""
        return SYMPTOMS[self.what] in message and f" {self.group}." in message


def any_unlearnable(chance: random.Random, *, prompts: int) -> Unlearnable | None:
    """In some jobs, one of the first groups; the others hold nothing of the kind."""
    if chance.random() > 0.1:
        return None
    return Unlearnable(f"g{chance.randrange(prompts)}", chance.choice(sorted(SYMPTOMS)))


class UnlearningBackend(EmulatedBackend):
    """An emulated backend that fails as real ones do: by NaN, or for want of memory.

    Args:
        unlearnable: what it fails of; None for nothing.
        happened: counts how often it has been given that.
        watch: takes all that it is given.
    """

    def __init__(
        self,
        unlearnable: Unlearnable | None,
        happened: Counter[str],
        watch: Callable[[TrainingSample], None] = lambda _: None,
    ) -> None:
        self._unlearnable, self._happened, self._watch = unlearnable, happened, watch
        self._met = False
        super().__init__(EmulatedBackendOptions(), world_size=1, sleep=lambda _: None)

    def begin_step(self, step: int) -> None:
        """Start a step with nothing accumulated."""
        super().begin_step(step)
        self._met = False

    def learn(self, sample: TrainingSample) -> tuple[float, int]:
        """Nothing; the loss is NaN where a log-probability is, as in any formula of it."""
        self._watch(sample)
        loss, tokens = super().learn(sample)
        loss += sum(0.0 * float(segment.logprobs.sum()) for segment in sample.trajectory.segments)
        if self._unlearnable is None or group_of(sample.trajectory.id) != self._unlearnable.group:
            return loss, tokens
        self._met = True
        self._happened[f"unlearnable {self._unlearnable.what}"] += 1
        if self._unlearnable.what == "memory":
            raise MemoryError("8 GB")
        return (np.nan if self._unlearnable.what == "loss" else loss), tokens

    def finish_step(self) -> StepStats:
        """Count the step."""
        stats = super().finish_step()
        if self._met and self._unlearnable is not None and self._unlearnable.what == "weights":
            self.weights[TENSOR] = self.weights[TENSOR] * np.float32(np.nan)
        return stats
