"""What a step's statistics say of the answers that were trained on."""

from __future__ import annotations

import numpy as np
import pytest

from rljob_core.messages import TrainingItem
from rljob_core.ports import TrainingSample
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.training.step_count import StepCount


def sample(logprobs: list[float], finish: FinishReason) -> TrainingSample:
    made, prompt = np.array(logprobs, np.float32), np.zeros(2, np.float32)
    segments = [
        Segment(source, np.zeros(len(p), np.int32), np.ones(len(p), np.uint8), p, np.zeros(len(p), np.int32))
        for source, p in ((Source.PROMPT, prompt), (Source.MODEL, made))
    ]
    span = VersionSpan(0, 0)
    trajectory = Trajectory("g0.0", 1, 0, segments, span, finish, "e")
    item = TrainingItem("g0.0", 1, "g0", 0.0, 0.0, span, len(made) + 2, "d", 1, 0)
    return TrainingSample(item, trajectory)


def test_entropy_is_estimated_from_what_was_drawn_and_cut_answers_are_counted() -> None:
    count = StepCount(0)
    count.add([sample([-0.5, -1.5], FinishReason.STOP), sample([-1.0], FinishReason.LENGTH)], tokens=3)
    stats = count.stats()
    assert stats.entropy == pytest.approx(1.0)
    assert stats.truncated == 0.5


def test_of_a_step_without_samples_neither_is_known() -> None:
    stats = StepCount(0).stats()
    assert (stats.entropy, stats.truncated) == (None, None)
