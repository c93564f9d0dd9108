"""Trajectories with random tokens."""

from __future__ import annotations

import numpy as np

from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan


def trajectory(number: int, *, tokens: int = 100, attempt: int = 1) -> Trajectory:
    random = np.random.default_rng(number)
    model = Segment(
        Source.MODEL,
        random.integers(0, 1000, tokens, dtype=np.int32),
        np.ones(tokens, np.uint8),
        random.standard_normal(tokens, dtype=np.float32),
        np.full(tokens, 3, np.int32),
    )
    return Trajectory(
        f"g{number}.0", attempt, number, (model,), VersionSpan(3, 3), FinishReason.STOP, "engine-0"
    )
