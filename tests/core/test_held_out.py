"""Scores of held-out answers: pass@k, means with intervals, and what a job with several held-out sets records."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from statistics import fmean, stdev

import pytest
from ledger_history import records
from world import World, job_config

from rljob_core.actions import Action, PublishMetrics
from rljob_core.held_out import HeldOutScore, clustered_mean, pass_at, passes, score_answers
from rljob_core.messages import StepMetrics
from rljob_core.planner import Planner
from rljob_core.records import Evaluated


@pytest.mark.parametrize("answers", range(1, 6))
def test_pass_at_k_is_the_share_of_draws_of_k_answers_of_which_one_passes(answers: int) -> None:
    for passed in range(answers + 1):
        for k in range(1, answers + 1):
            draws = list(combinations([index < passed for index in range(answers)], k))
            assert pass_at(k, answers=answers, passed=passed) == pytest.approx(fmean(map(any, draws)))


def test_pass_at_is_told_for_powers_of_two_and_all_answers_and_forgives_the_last_bit() -> None:
    assert passes([[0.1 + 0.2, 0, 0, 0, 0, 0], [0.0] * 6], 0.3) == pytest.approx(
        {1: 1 / 12, 2: 1 / 6, 4: 1 / 3, 6: 0.5}
    )
    assert passes([[3 * 0.1 - 1e-12]], 0.3) == {1: 1.0}


def test_answers_to_one_prompt_are_one_cluster_of_the_interval() -> None:
    twice = [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]
    mean, half = clustered_mean(twice)
    assert (mean, half) == (0.625, pytest.approx(1.96 * stdev([1, 0, 1, 0.5]) / sqrt(4)))
    assert clustered_mean([[one] for one, _ in twice]) == (mean, pytest.approx(half))
    assert clustered_mean([[1.0, 0.0]]) == (0.5, None)


def test_an_answer_without_a_score_counts_as_0_and_never_passes() -> None:
    sampled: list[list[float | None]] = [[None, -1.0], *[[1.0, 1.0]] * 9]
    score = score_answers(sampled, [1.0] * 10, pass_reward=-5.0, error="prompt 0: no gold")
    assert (score.samples, score.answers, score.failed, score.error) == (10, 30, 1, "prompt 0: no gold")
    assert score.sampled == pytest.approx((-0.5 + 9) / 10)
    assert score.pass_at == pytest.approx({1: 0.95, 2: 1.0})
    many = score_answers([[None, None], *sampled[1:]], [None, None, *[1.0] * 8], pass_reward=1.0)
    assert (many.sampled, many.greedy, many.failed, many.pass_at) == (None, None, 4, {})


def test_each_held_out_set_has_scores_of_its_own() -> None:
    lines: list[StepMetrics] = []

    class Watched(World):
        def act(self, action: Action) -> None:
            if isinstance(action, PublishMetrics) and action.metrics.is_evaluation:
                lines.append(action.metrics)
            super().act(action)

    def reward(trajectory: str) -> float:
        """Of the first set only the first of four answers passes, of the second set every answer."""
        prompt, _, sibling = trajectory.partition("-")[2].partition(".")
        return float(prompt.startswith("10000") or sibling == "0") if trajectory.startswith("e") else 0.25

    sets = [{"name": "aime", "samples": 3}, {"name": "gsm8k", "groupSize": 1}]
    evaluation = {"everySteps": 2, "samples": 2, "groupSize": 4, "sets": sets}
    world = Watched(job_config(steps=2, evaluation=evaluation), reward=reward)
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    found = [record for record in records(world) if isinstance(record, Evaluated)]
    assert [record.version for record in found] == [0, 2]
    for record, line in zip(found, lines, strict=True):
        assert (record.sampled, record.greedy, record.samples, record.answers) == (0.25, 0.0, 3, 15)
        assert record.pass_at == {1: 0.25, 2: 0.5, 4: 1.0}
        assert record.sets == {"gsm8k": HeldOutScore(1.0, 1.0, 2, 4, sampled_ci95=0.0, greedy_ci95=0.0)}
        assert line.held_out == dict(zip(("aime", "gsm8k"), record.scores, strict=True))


def test_a_set_without_samples_is_asked_as_many_prompts_as_it_has_up_to_200() -> None:
    config = job_config(
        evaluation={"sets": [{"name": "few"}, {"name": "many"}, {"name": "said", "samples": 7}]}
    )
    assert config.spec.evaluation is not None
    numbers = [
        one.asked(rows) for one, rows in zip(config.spec.evaluation.held_out, (30, 1000, 9), strict=True)
    ]
    assert numbers == [30, 200, 7]
    asked = Planner(config, held_out=numbers).context.asked
    assert [(one.name, one.prompts) for one in asked] == [
        ("few", range(30)),
        ("many", range(100_000, 100_200)),
        ("said", range(200_000, 200_007)),
    ]
