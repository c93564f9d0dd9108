"""The longest answers are generated first while that helps, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from test_migration import RecordedPlanner

from rljob_core.actions import LengthsPredicted, PredictLengths
from rljob_core.records import Dispatched


def dispatched(correlation: float, *, kv_tokens: int | None = None, **pipeline: Any) -> list[str]:
    """The first trajectories that an engine gets of a step of four prompts, of which the third is the longest."""
    job = RecordedPlanner(data={"promptsPerStep": 4, "groupSize": 1}, pipeline=pipeline)
    asked = job.last(PredictLengths)
    tokens = tuple({0: 5.0, 1: 20.0, 2: 90.0, 3: 60.0}.get(prompt, 1.0) for prompt in asked.prompts)
    job.see(LengthsPredicted(asked.prompts, tokens, (1.0,) * len(tokens), correlation, correlation))
    job.engine("e.x", context=90, kv_tokens=kv_tokens)
    return list(job.last(Dispatched).trajectories[:2])


def test_the_longest_go_first() -> None:
    assert dispatched(0.7) == ["g2.0", "g3.0"]
    assert dispatched(0.7, mode="Synchronous", maxStaleness=0) == ["g2.0", "g3.0"]


@pytest.mark.parametrize(
    ("correlation", "changes"),
    [
        (0.29, {}),
        (-0.9, {}),
        (0.7, {"kv_tokens": 100}),
        (0.7, {"mode": "Streaming", "maxStaleness": 0}),  # nothing is known yet of how long the trainer waits
    ],
    ids=[
        "little is known",
        "the contrary is known",
        "caches are full",
        "the trainer waits for the first ones",
    ],
)
def test_by_number_where_that_does_not_help(correlation: float, changes: dict[str, Any]) -> None:
    assert dispatched(correlation, **changes) == ["g0.0", "g1.0"]
