"""The learning rate of each step."""

from __future__ import annotations

import pytest

from rljob_core.spec import AlgorithmSpec
from rljob_runtime.training.optimizer import learning_rate


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # 2 steps of warm-up, then 4 in which it falls from 1 to 0.2.
        ("Constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("Linear", [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("Cosine", [0.5, 1.0, 1.0, 0.6 + 0.4 * 0.5**0.5, 0.6, 0.6 - 0.4 * 0.5**0.5, 0.2, 0.2]),
    ],
)
def test_it_warms_up_and_falls_to_its_end(schedule: str, rates: list[float]) -> None:
    algorithm = AlgorithmSpec.model_validate(
        {
            "learningRate": 1.0,
            "learningRateSchedule": schedule,
            "warmupSteps": 2,
            "decaySteps": 6,
            "minLearningRate": 0.2,
        }
    )
    assert [learning_rate(algorithm, step) for step in range(8)] == pytest.approx(rates)
