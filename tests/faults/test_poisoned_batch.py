"""A batch that no backend can learn from ends the job, which names its trajectories and goes on once that is mended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_run import FaultyRun
from installed import install
from tests.draw import draw
from tests.emulated import emulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 4
POISON = "g5"  # of the second step: a step has four prompts
SYMPTOMS = [("loss", "the loss (nan)"), ("memory", "out of memory (8 GB)")]
CODE = """
import time
from rljob_core.trajectory import group_of
from rljob_runtime.training.backends.emulated import EmulatedBackend
from rljob_runtime.training.options import EmulatedBackendOptions

class Options(EmulatedBackendOptions):
    group: str = ""
    symptom: str = ""

class Unlearning(EmulatedBackend):
    options_model = Options

    def __init__(self, config, *, options, model_path, rank, world_size):
        self._poison = options
        super().__init__(options, world_size=world_size, sleep=time.sleep)

    def learn(self, sample):
        loss, tokens = super().learn(sample)
        if group_of(sample.trajectory.id) == self._poison.group:
            if self._poison.symptom == "memory":
                raise MemoryError("8 GB")
            loss = float("nan")
        return loss, tokens
"""


@pytest.mark.parametrize(
    ("symptom", "words"), draw("poisoned batches", SYMPTOMS, 1), ids=lambda text: text.partition(" ")[0]
)
def test_a_batch_that_nobody_can_learn_from_is_named(
    symptom: str,
    words: str,
    start: Callable[..., FaultyRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugins = install(tmp_path / "plugins", "rljob-unlearning", CODE, backends="Unlearning = Unlearning")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH")]))
    )
    changes = emulated(step_seconds=0.05)
    changes["trainer"] = {"backend": "Unlearning", "options": {"group": POISON, "symptom": symptom}}
    run = start(f"poisoned batch, {symptom}", steps=STEPS, **changes)
    assert run.wait() == 1, run.said
    assert run.summary()["exit"] == "Failed"
    said = run.said
    assert words in said, said
    assert f"{POISON}." in said
    assert run.steps() < STEPS
    run.resume("--set", "spec.trainer.options.group=none")
    run.finish()
