"""A batch that no backend can learn from ends the job, which names its trajectories and goes on once that is mended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_run import FaultyRun
from installed import install
from tests.emulated import emulated
from tests.night import some

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 4
POISON = "g5"  # of the second step: a step has four prompts
NOT_A_NUMBER = """
import time
from rljob_core.trajectory import group_of
from rljob_runtime.training.backends.emulated import EmulatedBackend
from rljob_runtime.training.options import EmulatedBackendOptions

class Options(EmulatedBackendOptions):
    group: str = ""

class Unlearning(EmulatedBackend):
    options_model = Options

    def __init__(self, config, *, options, model_path, rank, world_size):
        self._poison = options.group
        super().__init__(options, world_size=world_size, sleep=time.sleep)

    def learn(self, sample):
        loss, tokens = super().learn(sample)
        return (float("nan") if group_of(sample.trajectory.id) == self._poison else loss), tokens
"""
EXHAUSTING = """
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np

from rljob_core.trajectory import Source, group_of
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.options import TorchBackendOptions

MORE = 32 << 20  # bytes that the process may map besides those that it has mapped
TOKENS = 150_000  # a tensor of hidden states has 77 MB: malloc has to map that, whatever it holds of what was freed

class Options(TorchBackendOptions):
    group: str = ""

class Unlearning(TorchBackend):
    options_model = Options

    def __init__(self, config, *, options, **place):
        self._poison = options.group
        super().__init__(config, options=options, **place)

    def accumulate(self, samples):
        if any(group_of(s.trajectory.id) == self._poison for s in samples):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MORE
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            samples = [lengthened(s) for s in samples]
        return super().accumulate(samples)

def lengthened(sample):
    segments = [s if s.source is not Source.MODEL else longer(s) for s in sample.trajectory.segments]
    return replace(sample, trajectory=replace(sample.trajectory, segments=tuple(segments)))

def longer(segment):
    columns = ("tokens", "loss_mask", "logprobs", "versions")
    return replace(segment, **{name: np.resize(getattr(segment, name), TOKENS) for name in columns})
"""
#: What the trainer's backend does, and what the job says then. Of memory, it is torch that says so: the responses are
#: longer than what the trainer's process may map.
SYMPTOMS = {
    "loss": (NOT_A_NUMBER, "the loss (nan)"),
    "memory": (EXHAUSTING, "out of memory in the forward and backward of"),
}


@pytest.mark.parametrize("symptom", some(sorted(SYMPTOMS), 1))
def test_a_batch_that_nobody_can_learn_from_is_named(
    symptom: str, start: Callable[..., FaultyRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, words = SYMPTOMS[symptom]
    plugins = install(tmp_path / "plugins", "rljob-unlearning", code, backends="Unlearning = Unlearning")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH")]))
    )
    changes = emulated(step_seconds=0.05)
    changes["algorithm"] = {"kl": 0.01}  # so that answers with equal scores are trained on, too
    changes["trainer"] = {"backend": "Unlearning", "options": {"group": POISON}}
    run = start(f"poisoned batch, {symptom}", steps=STEPS, **changes)
    assert run.wait() == 1, run.said
    assert run.summary()["exit"] == "Failed"
    said = run.said
    assert words in said, said
    assert f"{POISON}." in said
    assert "at fault: what was trained on, or how" in said
    assert run.steps() < STEPS
    run.resume("--set", "spec.trainer.options.group=none")
    run.finish()
