"""A step whose loss, gradient or weights are not finite, or that exhausts memory, is explained and never committed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from role_jobs import job, ledger
from role_tasks import Roles
from tests.waiting import in_time

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import JobFailed, NotFinite
from rljob_core.messages import StepStats
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_core.records import StepCommitted
from rljob_runtime.weights.create import open_store

POISONED = 2
"""The step at which it happens."""


class Poisoned:
    """A backend that behaves until the step."""

    def __init__(self, sound: TrainerBackend) -> None:
        self._sound = sound
        self.step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)

    def begin_step(self, step: int) -> None:
        self.step = step
        self._sound.begin_step(step)


class NaNLoss(Poisoned):
    def finish_step(self) -> StepStats:
        stats = self._sound.finish_step()
        return replace(stats, loss=float("nan")) if self.step == POISONED else stats


class InfiniteGradient(Poisoned):
    def finish_step(self) -> StepStats:
        if self.step == POISONED:
            raise NotFinite("the gradient (its norm is inf, the loss 1)", micro_batch=1)
        return self._sound.finish_step()


class NaNWeights(Poisoned):
    def tensors(self) -> Iterable[tuple[str, Any]]:
        return self._spoiled() if self.step == POISONED else self._sound.tensors()

    def _spoiled(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self._sound.tensors():
            yield name, np.where(np.arange(tensor.size) == tensor.size - 1, np.float32("nan"), tensor)


class NoMemory(Poisoned):
    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        if self.step == POISONED:
            raise MemoryError("cannot allocate 4 TiB")
        self._sound.accumulate(samples)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("kind", "words", "named"),
    [
        (
            NaNLoss,
            r"step 2: the loss \(nan\) is not finite, so that version 3 is not committed; its batch: ",
            8,
        ),
        (InfiniteGradient, r"it began with the loss of micro-batch 1 of \d+: ", 2),
        (
            NaNWeights,
            r"step 2: the weight emulated\.steps is not finite, so that version 3 is not committed",
            8,
        ),
        (
            NoMemory,
            r"out of memory \(cannot allocate 4 TiB\)\. It was micro-batch 0 of step 2: g\d+\.0 \(\d+ tokens\)",
            2,
        ),
    ],
)
async def test_nothing_of_it_is_committed(
    tmp_path: Path, model: Path, kind: type[Poisoned], words: str, named: int
) -> None:
    config = job(tmp_path, model, mode="Synchronous", micro_batch_tokens=20)
    async with Roles(config, model, around_backend=kind) as roles:
        with pytest.raises(JobFailed, match=words) as caught:
            await in_time(roles.tasks["trainer"])
        commits = [r.version for r in await ledger(roles.store) if isinstance(r, StepCommitted)]
    assert commits == [1, 2]
    weights = open_store("Files", uri=config.weights_uri)
    assert [manifest.version for manifest in weights.proposals(0)] == [1, 2]
    assert len(re.findall(r"\bg\d+\.[01]\b", str(caught.value))) >= named
