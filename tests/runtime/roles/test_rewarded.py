"""What an answer's reward is made of, and what of an answer that was cut off is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_contract.samples import job_config, random_samples
from rljob_core.spec import RLJobSpec
from rljob_core.trajectory import FinishReason, Trajectory
from rljob_runtime.rewards.messages import ScoringOutcome
from rljob_runtime.roles.reward import rewarded
from rljob_runtime.roles.trainer.micro_batches import masked

PARTS = {"exact_match": 1.0, "style": 0.5}


def answer(finish: FinishReason, identifier: str = "g0.0") -> Trajectory:
    (sample,) = random_samples(1)
    return replace(sample.trajectory, id=identifier, finish=finish)


def spec(**changes: Any) -> RLJobSpec:
    reward = {"functions": ["exact_match", "style"], **changes.pop("reward", {})}
    return job_config(Path("model"), reward=reward, **changes).spec


@pytest.mark.parametrize(("weights", "total"), [([], 1.5), ([1.0, -2.0], 0.0), ([0.0, 4.0], 2.0)])
def test_scores_are_summed_up_by_their_weights(weights: list[float], total: float) -> None:
    found = rewarded(ScoringOutcome(9.0, PARTS), answer(FinishReason.STOP), spec(reward={"weights": weights}))
    assert (found.reward, found.parts) == (total, PARTS)


def test_a_cut_answer_is_penalised_unless_it_is_held_out() -> None:
    job = spec(algorithm={"truncated": "Penalise", "truncationPenalty": 0.25})
    rewards = {
        case: rewarded(ScoringOutcome(1.5, PARTS), answer(finish, identifier), job)
        for case, finish, identifier in (
            ("whole", FinishReason.STOP, "g0.0"),
            ("cut", FinishReason.LENGTH, "g0.0"),
            ("held out", FinishReason.LENGTH, "e0.0.s"),
        )
    }
    assert {case: found.reward for case, found in rewards.items()} == {
        "whole": 1.5,
        "cut": 1.25,
        "held out": 1.5,
    }
    assert [found.parts.get("truncationPenalty") for found in rewards.values()] == [0.0, -0.25, None]


def test_no_token_of_a_cut_answer_is_trained_on_where_it_is_masked() -> None:
    whole, cut = answer(FinishReason.STOP), answer(FinishReason.LENGTH)
    assert masked(whole) is whole
    assert any(segment.loss_mask.any() for segment in cut.segments)
    assert not any(segment.loss_mask.any() for segment in masked(cut).segments)
    assert all(
        np.array_equal(a.tokens, b.tokens) for a, b in zip(cut.segments, masked(cut).segments, strict=True)
    )
