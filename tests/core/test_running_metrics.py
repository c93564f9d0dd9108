"""What a step's line says of the answers that it was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import World, job_config

from rljob_core.actions import Action, PublishMetrics, RewardsSeen
from rljob_core.job_state import JobState
from rljob_core.messages import EngineSignal, StepMetrics, WeightSwap
from rljob_core.planner.running_metrics import RunningMetrics
from rljob_core.records import GroupAborted


class Watched(World):
    """A world that keeps its metrics lines; rewards have two parts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.lines: list[StepMetrics] = []
        super().__init__(*arguments, **options)

    def act(self, action: Action) -> None:
        if isinstance(action, PublishMetrics) and action.metrics.reward_mean is not None:
            self.lines.append(action.metrics)
        super().act(action)

    def observe(self, *observations: Any) -> None:
        super().observe(*(self._in_parts(o) if isinstance(o, RewardsSeen) else o for o in observations))

    def _in_parts(self, seen: RewardsSeen) -> RewardsSeen:
        results = tuple(replace(r, parts={"exact": r.reward - 0.5, "style": 0.5}) for r in seen.results)
        return replace(seen, results=results)


def lines_of(reward: Any, **changes: Any) -> list[StepMetrics]:
    reward_spec = {"functions": ["exact", "style"]}
    world = Watched(job_config(steps=3, reward=reward_spec, **changes), reward=reward)
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    return world.lines


def test_each_function_s_mean_is_said() -> None:
    for line in lines_of(lambda trajectory: float(trajectory.endswith("0"))):
        assert line.reward_parts == {"exact": 0.0, "style": 0.5}
        assert (line.reward_mean, line.groups_uniform, line.uniform_prompts) == (0.5, 0.0, ())


def test_groups_with_equal_rewards_are_counted_and_named() -> None:
    lines = lines_of(lambda trajectory: 0.0)
    assert [line.groups_uniform for line in lines] == [1.0, 1.0, 1.0]
    assert all(len(line.uniform_prompts) == 2 for line in lines)


@pytest.mark.parametrize("most", [0, 2])
def test_groups_that_were_replaced_count_with_the_step_that_they_were_to_be_in(most: int) -> None:
    lines = lines_of(
        lambda trajectory: float(trajectory.endswith("0") and trajectory != "g1.0"),
        algorithm={"dropUniformGroups": True},
        pipeline={"maxResamples": most},
    )
    shares = [line.groups_uniform for line in lines]
    assert sorted(shares) == [0.0, 0.0, 1 / 2 if most == 0 else 1 / 3]
    assert sorted(line.uniform_prompts for line in lines) == [(), (), (1,)]


def test_answers_that_were_scored_and_not_trained_on_count_in_the_mean_of_all() -> None:
    """Also under a coordinator that takes over between their end and the commit, as the ledger has them."""

    class Dies(Watched):
        def perform(self, decision: Any) -> None:
            if any(isinstance(record, GroupAborted) for record in decision.records):
                self.dies_after_append = "c2"
            super().perform(decision)

    config = job_config(
        steps=2, reward={"functions": ["exact", "style"]}, algorithm={"dropUniformGroups": True}
    )
    world = Dies(config, reward=lambda trajectory: float(trajectory.endswith("0") and trajectory != "g1.0"))
    world.start()
    world.run()
    assert world.planner.state.writer.instance == "c2"
    assert [line.reward_mean_trained for line in world.lines] == [0.5, 0.5]
    assert sorted(line.reward_mean or 0.0 for line in world.lines) == [pytest.approx(1 / 3), 0.5]
    assert sorted(line.uniform_prompts for line in world.lines) == [(), (1,)]


def test_seconds_and_tokens_count_on_from_an_earlier_coordinator_s() -> None:
    metrics, state = RunningMetrics(), JobState()
    metrics.start(100.0, epoch=2)
    metrics.continue_from(7.0, 40)
    metrics.heard(replace(swapped("old.1"), epoch=1, tokens=35))  # counted by the earlier coordinator
    metrics.heard(replace(swapped("old.1"), epoch=2, tokens=45))
    metrics.heard(replace(swapped("new.1"), epoch=2, tokens=3))
    metrics.engine_gone("new.1")  # or so it seemed
    metrics.heard(replace(swapped("new.1"), epoch=2, tokens=3))
    line = metrics.line(state, now=102.0)
    assert (line.seconds, line.tokens_generated, line.tokens_per_second) == (9.0, 53, 6.5)


def swapped(engine: str, *swaps: WeightSwap) -> EngineSignal:
    return EngineSignal(engine, "p", 1, 1, 0, 8, 0, 0, 5, swaps=swaps)


def test_a_line_names_the_swaps_since_the_line_before_it() -> None:
    metrics, state = RunningMetrics(), JobState()
    first, second, third = (WeightSwap(version, 10.0 * version, 0.5) for version in (1, 2, 3))
    metrics.heard(swapped("a.1", first))
    metrics.heard(swapped("a.1", first, second))
    metrics.heard(swapped("b.1", first))
    assert metrics.line(state, now=1.0).swaps == {"a.1": (first, second), "b.1": (first,)}
    metrics.heard(swapped("a.1", first, second))
    metrics.heard(swapped("b.1", first, second, third))
    assert metrics.line(state, now=2.0).swaps == {"b.1": (second, third)}


def test_a_line_names_a_bounded_number_of_swaps_of_any_engines() -> None:
    metrics, state = RunningMetrics(), JobState()
    many = tuple(WeightSwap(version, float(version), 0.5) for version in range(1, 50))
    for engine in range(100):
        metrics.heard(swapped(f"e{engine}.1", *many))
    line = metrics.line(state, now=1.0)
    assert sum(map(len, line.swaps.values())) == 64
    assert line.swaps["e0.1"] == many[-4:]
    for engine in range(100):
        metrics.heard(swapped(f"e{engine}.1", *many))
    after = metrics.line(state, now=2.0)
    assert not set(line.swaps) & set(after.swaps)
    assert sum(map(len, after.swaps.values())) == 64


def test_an_evaluation_s_line_says_how_long_it_took() -> None:
    found: list[StepMetrics] = []

    class Evaluated(World):
        def act(self, action: Action) -> None:
            if isinstance(action, PublishMetrics) and action.metrics.heldout_sampled is not None:
                found.append(action.metrics)
            super().act(action)

    world = Evaluated(job_config(steps=2, evaluation={"everySteps": 1, "samples": 2}))
    world.start()
    world.run()
    assert found
    assert all(line.heldout_seconds is not None and line.heldout_seconds > 0 for line in found)
