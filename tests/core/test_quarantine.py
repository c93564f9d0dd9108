"""A trajectory that kills its engines is found, its group alone is given up, and other work goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_history import check_history, records
from poison_cost import LONG, SHORT, Poison, chance, nothing, one_sibling, prompt, run
from test_migration import RecordedPlanner, stored
from tests.night import some
from world import World, job_config

from rljob_core.actions import (
    EngineDrained,
    OwnHeartbeat,
    PayloadSeen,
    ProgressFound,
    SendToEngine,
    SignalSeen,
    Summary,
)
from rljob_core.job_state import QUARANTINE_DEATHS
from rljob_core.messages import (
    RELEASED,
    EngineDied,
    EngineSignal,
    Generate,
    GenerationEnded,
    Release,
)
from rljob_core.planner.early_trial import groups_as_far
from rljob_core.planner.evaluation import AskedSet, Evaluation, asked_sets
from rljob_core.planner.liveness import LEASE_HEARTBEATS
from rljob_core.records import Evaluated, GroupAborted, SiblingReset
from rljob_core.trajectory import VersionSpan, group_of

SHAPES: list[dict[str, Any]] = [
    {"pipeline": {"mode": "Synchronous"}},
    {"pipeline": {"mode": "Streaming", "inflight": "Keep"}},
    {"pipeline": {"mode": "BoundedAsync", "maxStaleness": 2, "inflight": "Keep"}},
    {"pipeline": {"mode": "BoundedAsync", "maxStaleness": 2, "inflight": "Restart"}},
    {"pipeline": {"mode": "BoundedAsync", "maxStaleness": 1}},
]


def of_prompts(*prompts: int) -> Callable[[Generate], bool]:
    return lambda work: group_of(work.trajectory) in {f"g{prompt}" for prompt in prompts}


def aborted(world: World) -> list[GroupAborted]:
    return [r for r in records(world) if isinstance(r, GroupAborted)]


@pytest.mark.parametrize("engines", some([2, 1, 4], 1))
@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_prompt_that_kills_engines_nothing_else_is_given_up(shape: dict[str, Any], engines: int) -> None:
    config = job_config(steps=6, data={"promptsPerStep": 4, "groupSize": 4}, **shape)
    world = World(config, engines=engines, poison=of_prompts(9))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    (abort,) = aborted(world)
    assert (abort.group, abort.reason) == ("g9", "PromptExhausted")
    assert "prompt 9 (g9." in abort.detail
    assert "exit code 139 (SIGSEGV): it died of g9." in abort.detail


@pytest.mark.parametrize("engines", [1, 3])
def test_several_such_prompts_at_once_are_found_one_after_the_other(engines: int) -> None:
    config = job_config(steps=6, data={"promptsPerStep": 8, "groupSize": 4})
    world = World(config, engines=engines, poison=of_prompts(1, 6, 9, 20))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert {a.group for a in aborted(world)} == {"g1", "g6", "g9", "g20"}


def test_what_dies_beside_it_is_not_given_up() -> None:
    world = World(job_config(steps=6, data={"promptsPerStep": 8, "groupSize": 4}), poison=of_prompts(5))
    world.start()
    world.run()
    together = [held for held in world.deaths if len(set(map(group_of, held))) > 1]
    for trajectory in {t for held in together for t in held if group_of(t) != "g5"}:
        beside = [r for r in records(world) if isinstance(r, SiblingReset) and r.trajectory == trajectory]
        assert not any(r.failure for r in beside)
    assert len(set(map(group_of, world.deaths[-1]))) == 1


@pytest.mark.parametrize("step_seconds", some([SHORT, LONG], 1))
@pytest.mark.parametrize(
    ("poisoned", "poison", "deaths"),
    [("g100", prompt(100), 3), ("g1", prompt(1), 5), ("g100", one_sibling(100), 3)],
    ids=["prompt", "prompt of the first step", "sibling"],
)
def test_a_large_engine_that_dies_of_it_quarantines_few(
    poisoned: str, poison: Poison, deaths: int, step_seconds: float
) -> None:
    found = run(1, poison, step_seconds=step_seconds, steps=8)
    assert found.given_up == (poisoned,)
    assert found.deaths <= deaths


@pytest.mark.parametrize(("mode", "poisoned"), [("Synchronous", 200), ("BoundedAsync", 130)])
def test_among_all_prompts_of_a_step_which_begin_together_it_is_found_as_soon(
    mode: str, poisoned: int
) -> None:
    shape: dict[str, Any] = {"engines": 2, "siblings": 4, "restart_seconds": 3.0, "mode": mode}
    found = run(1, prompt(poisoned), step_seconds=SHORT, steps=8, **shape)
    assert found.given_up == (f"g{poisoned}",)
    assert found.deaths <= 4


@pytest.mark.parametrize(("seed", "step_seconds"), some([(2, SHORT), (1, LONG), (2, LONG)], 1))
def test_one_prompt_of_a_thousand_costs_a_job_little_time(seed: int, step_seconds: float) -> None:
    clean = run(seed, nothing, step_seconds=step_seconds)
    for poison in some([one_sibling(500 + seed), prompt(500 + seed)], 1):
        found = run(seed, poison, step_seconds=step_seconds)
        assert found.given_up == (f"g{500 + seed}",)
        assert found.seconds <= 1.05 * clean.seconds


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "token"), [(1, 15), (1, 40)])
def test_one_that_kills_later_is_found_as_soon(seed: int, token: int) -> None:
    clean = run(seed, nothing, step_seconds=SHORT)
    found = run(seed, prompt(500 + seed), step_seconds=SHORT, token=token)
    assert (found.given_up, found.deaths) == ((f"g{500 + seed}",), 3)
    assert found.seconds <= 1.05 * clean.seconds


def test_siblings_that_wait_on_other_engines_are_given_back_when_one_kills_its_engine() -> None:
    job = of_two_engines()
    state = job.planner.state
    mine, others = (sorted(s.id for s in state.siblings() if s.engine == e) for e in ("e0.x", "e1.x"))
    parted = [t for t in others if group_of(t) in map(group_of, mine)]
    assert parted
    job.see(EngineDied("e0.x", 139, ""))
    ((engine, item),) = recalled(job)
    assert (engine, sorted(item.trajectories), item.unless_begun) == ("e1.x", parted, True)
    job.see(*(GenerationEnded(engine, t, 1, RELEASED, failure=False) for t in parted))
    job.engine("e2.x")
    siblings = [s for s in state.siblings() if group_of(s.id) in map(group_of, parted)]
    assert {job.sent(s.id).attempt for s in siblings} >= {2}
    assert all(job.sent(s.id).survivor for s in siblings if s.attempt == 2)
    job.see(EngineDied(state.sibling(parted[0]).engine, 139, ""))
    assert len(recalled(job)) == 1, "they are together now"


def test_the_coordinator_s_own_removal_of_a_key_is_not_another_death() -> None:
    job = RecordedPlanner(rollout={"progressTokens": 0})
    job.engine("e0.x")
    job.lose("e0.x")
    job.engine("e0.x")  # it is alive, and had signalled before it was declared lost
    sibling = job.planner.state.sibling("g0.0")
    assert sibling is not None
    assert (sibling.engine, sibling.attempt, sibling.deaths) == ("e0.x", 2, 1)
    job.lose("e0.x")  # the coordinator reads of its own removal
    assert (sibling.engine, sibling.attempt, sibling.deaths) == ("e0.x", 2, 1)
    job.lose("e0.x")
    assert sibling.deaths == 2


def test_nothing_is_given_back_for_an_engine_of_which_nobody_says_that_it_crashed() -> None:
    job = of_two_engines()
    job.lose("e0.x")
    assert not recalled(job)


def of_two_engines() -> RecordedPlanner:
    """Two prompts of two siblings, which two engines generate."""
    job = RecordedPlanner(data={"promptsPerStep": 2, "groupSize": 2}, rollout={"progressTokens": 0})
    signals = (EngineSignal(name, "a", 0, 0, 0, 8, 0, 0, 0) for name in ("e0.x", "e1.x"))
    job.see(*(SignalSeen(signal.engine, signal) for signal in signals))
    return job


def recalled(job: RecordedPlanner) -> list[tuple[str, Release]]:
    return [
        (action.engine, item)
        for action in job.actions
        if isinstance(action, SendToEngine)
        for item in action.items
        if isinstance(item, Release)
    ]


def test_of_what_outlives_engines_by_chance_nothing_is_given_up() -> None:
    found = run(2, chance(2, one_in=250), step_seconds=SHORT, steps=8)
    assert found.deaths > 5
    assert found.given_up == ()


def test_a_held_out_prompt_that_kills_engines_counts_as_nothing_and_is_asked_once() -> None:
    config = job_config(
        steps=20,
        data={"promptsPerStep": 2, "groupSize": 2},
        evaluation={"samples": 10, "everySteps": 1},
    )
    world = World(
        config, reward=lambda _: 1.0, poison=lambda work: work.trajectory.startswith("e") and work.prompt == 3
    )
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    done = [r for r in records(world) if isinstance(r, Evaluated)]
    assert len(done) > 3
    assert {r.given_up for r in done} == {(3,)}
    assert {(r.sampled, r.failed) for r in done} == {(9 / 10, 2)}
    assert {r.error.partition(": ")[0] for r in done} == {"prompt 3"}
    assert not aborted(world)
    assert max(int(t[1]) for held in world.deaths for t in held if t.endswith("-3.0")) == 0


@pytest.mark.parametrize("engines", [1, 2])
def test_held_out_prompts_are_asked_again_when_another_that_killed_engines_is_found(engines: int) -> None:
    config = job_config(
        steps=12, data={"promptsPerStep": 2, "groupSize": 2}, evaluation={"samples": 6, "everySteps": 2}
    )
    world = World(
        config,
        engines=engines,
        reward=lambda _: 1.0,
        poison=lambda work: work.trajectory.startswith("e") and work.prompt in {1, 3},
    )
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert {frozenset(r.given_up) for r in records(world) if isinstance(r, Evaluated)} == {frozenset({1, 3})}


@pytest.mark.parametrize("after", [1, 2, 3, 5, 9])
def test_a_coordinator_that_dies_meanwhile_is_succeeded_by_one_that_finds_it_too(after: int) -> None:
    world = World(job_config(steps=6, data={"promptsPerStep": 4, "groupSize": 4}), poison=of_prompts(9))
    world.start()
    killed_at = -1
    while len(world.deaths) < after and not world.finished:
        assert world.step()
        if len(world.deaths) > killed_at:
            killed_at = len(world.deaths)
            world.dies_after_append = f"c{killed_at}"
    world.dies_after_append = ""
    world.restart_coordinator("last")
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert [a.group for a in aborted(world)] == ["g9"]


class TwoPrompts:
    """A job of two open prompts of one sibling, on one engine at a time."""

    def __init__(self, *, progress: int = 0) -> None:
        self.job = RecordedPlanner(rollout={"progressTokens": progress})
        self.state = self.job.planner.state
        self.engines = self.stored = 0
        self.start()

    def start(self) -> None:
        self.job.engine(f"e{self.engines}.x")

    def die(self, **tokens: int) -> set[str]:
        """The engine dies, and another one comes; what the dead one was generating.

        Args:
            tokens: how many each group's sibling had, by the report.
        """
        held = set(self.state.generating[f"e{self.engines}.x"])
        reached = {f"{group}.0": number for group, number in tokens.items()}
        died = EngineDied(f"e{self.engines}.x", 139, "", "", tuple(reached), tuple(reached.values()))
        self.job.see(died)
        self.engines += 1
        self.start()
        return held

    def deaths(self) -> dict[str, int]:
        return {sibling.id: sibling.deaths for sibling in self.state.siblings()}

    def store(self, trajectory: str, attempt: int) -> None:
        """An engine has generated it."""
        digest = f"{trajectory}/{attempt}"
        self.stored += 1
        self.job.see(
            PayloadSeen(self.stored, (Summary(trajectory, attempt, VersionSpan(0, 0), 1, 1, digest),))
        )


@pytest.fixture
def early() -> TwoPrompts:
    """Both were held by two engines that died, which had just begun them; g1 was then alone on the third."""
    two = TwoPrompts()
    for _ in range(2):
        assert two.die() == {"g0.0", "g1.0"}
    assert two.die() == {"g1.0"}
    return two


@pytest.fixture
def quarantined(early: TwoPrompts) -> TwoPrompts:
    """Each was held by three engines that died, and is quarantined."""
    assert early.die() == {"g0.0"}
    assert set(early.state.quarantined) == {"g0.0", "g1.0"}
    return early


def test_what_was_just_begun_in_two_deaths_and_fails_alone_is_given_up_once_nothing_else_explains_them(
    early: TwoPrompts,
) -> None:
    assert set(early.state.generating["e3.x"]) == {"g0.0"}
    assert early.job.last(GroupAborted) is None
    early.store("g0.0", 3)
    assert early.job.last(GroupAborted).group == "g1"
    assert not early.state.survivors


def test_it_is_not_given_up_if_what_explains_them_kills_an_engine(early: TwoPrompts) -> None:
    assert early.die() == {"g0.0"}
    assert early.job.last(GroupAborted) is None
    assert early.deaths() == {"g0.0": 3, "g1.0": 3}


def test_it_is_not_given_up_while_it_is_tried_again(early: TwoPrompts) -> None:
    for engine in ("e4.x", "e5.x"):
        early.job.engine(engine)
    early.job.see(EngineDrained(99, "e3.x"))  # so nothing else was generated for a moment
    assert {tuple(ids) for ids in early.state.generating.values()} == {("g0.0",), ("g1.0",)}
    early.store("g0.0", 4)
    assert early.job.last(GroupAborted) is None
    early.store("g1.0", 4)
    assert early.job.last(GroupAborted) is None
    assert not early.state.survivors


def test_what_has_made_progress_is_not_tried_before_it_is_quarantined() -> None:
    two = TwoPrompts(progress=1)
    for attempt in (2, 3):
        assert two.die() == {"g0.0", "g1.0"}
        found = stored(attempt - 1)
        two.job.see(ProgressFound("g0.0", attempt, None), ProgressFound("g1.0", attempt, found))
    assert set(two.state.generating["e2.x"]) == {"g0.0", "g1.0"}


def test_what_engines_held_that_went_without_a_report_is_not_tried_before_it_is_quarantined() -> None:
    """They may have gone with their machines."""
    two = TwoPrompts()
    for engine in ("e0.x", "e1.x"):
        two.job.lose(engine)
        two.engines += 1
        two.start()
    assert set(two.deaths().values()) == {2}
    assert set(two.state.generating["e2.x"]) == {"g0.0", "g1.0"}


@pytest.mark.parametrize("poisoned", ["g0", "g1"])
def test_what_had_as_many_tokens_in_both_deaths_is_tried_next(poisoned: str) -> None:
    two = TwoPrompts()
    for tokens in ({"g0": 40, "g1": 90}, {"g0": 70, "g1": 20}):
        two.die(**{**tokens, poisoned: 15})
    assert two.die() == {f"{poisoned}.0"}


def test_progress_does_not_release_what_had_as_many_tokens_in_both_deaths() -> None:
    two = TwoPrompts(progress=1)
    for attempt, tokens in ((2, 40), (3, 90)):
        two.die(g0=tokens, g1=60)
        found = stored(attempt - 1)
        two.job.see(ProgressFound("g0.0", attempt, None), ProgressFound("g1.0", attempt, found))
    assert set(two.state.generating["e2.x"]) == {"g1.0"}


def test_the_most_tokens_of_siblings_are_compared_first_and_what_has_none_is_not() -> None:
    context = RecordedPlanner(data={"promptsPerStep": 3, "groupSize": 2}).planner.context

    def as_far(**tokens: tuple[int, int]) -> list[str]:
        reached = {f"{group}.{n}": number for group, both in tokens.items() for n, number in enumerate(both)}
        report = EngineDied("e0.x", 139, "", "", tuple(reached), tuple(reached.values()))
        return groups_as_far(context, list(reached), report)

    assert as_far(g0=(23, 5), g1=(14, 10), g2=(0, 0)) == []
    assert as_far(g0=(30, 5), g1=(13, 12), g2=(0, 0)) == ["g1", "g0"]
    assert as_far(g0=(90, 5), g1=(80, 70), g2=(0, 9)) == ["g0"]
    assert groups_as_far(context, ["g0.0"], None) == []


def test_of_several_quarantined_groups_it_is_tried_first_and_given_up_once_nothing_else_explains_its_deaths() -> (
    None
):
    two = TwoPrompts()
    two.die(g0=40, g1=90)
    two.job.lose("e1.x")  # nobody says how
    two.engines += 1
    two.start()
    assert two.die(g0=70, g1=91) == {"g0.0", "g1.0"}
    assert set(two.state.quarantined) == {"g0.0", "g1.0"}
    assert two.die(g1=90) == {"g1.0"}
    assert set(two.state.generating["e4.x"]) == {"g0.0"}
    two.store("g0.0", 4)
    assert two.job.last(GroupAborted).group == "g1"


def test_the_death_of_several_quarantined_groups_is_no_failure_of_any() -> None:
    job = RecordedPlanner(data={"promptsPerStep": 3, "groupSize": 1}, rollout={"progressTokens": 0})
    held: list[set[str]] = []
    for engine in ("e0.x", "e1.x", "e2.x", "e3.x"):
        job.engine(engine)
        held.append(set(job.planner.state.generating[engine]))
        job.lose(engine)
        job.see(*[OwnHeartbeat()] * 3)
    assert 1 < len(held[-1]) < len(held[0]), "they are tried in halves"
    assert {s.failures for s in job.planner.state.siblings()} == {0}


def beats(two: TwoPrompts, *, signalling: str = "") -> None:
    """The leases end of all engines but this one."""
    for _ in range(LEASE_HEARTBEATS + 1):
        two.job.see(OwnHeartbeat())
        if signalling:
            two.job.engine(signalling)


@pytest.mark.parametrize("alone", [True, False])
def test_what_was_tried_alone_has_failed_only_if_its_engine_ended_alone(
    quarantined: TwoPrompts, alone: bool
) -> None:
    assert set(quarantined.state.generating["e4.x"]) == {"g1.0"}
    quarantined.job.engine("other.x")
    beats(quarantined, signalling="other.x" if alone else "")
    sibling = quarantined.state.sibling("g1.0")
    assert sibling is not None
    assert (sibling.deaths, sibling.failures) == (4, 1 + int(alone))


def test_what_was_tried_alone_has_not_failed_if_the_coordinator_ended_too(quarantined: TwoPrompts) -> None:
    quarantined.job.planner.context.liveness.forget("e4.x")  # as a new one knows it: from the ledger alone
    beats(quarantined)
    sibling = quarantined.state.sibling("g1.0")
    assert sibling is not None
    assert (sibling.deaths, sibling.failures) == (4, 1)


def test_what_takes_everything_with_it_each_time_is_given_up_in_the_end(quarantined: TwoPrompts) -> None:
    sibling = quarantined.state.sibling("g1.0")
    assert sibling is not None
    sibling.deaths = QUARANTINE_DEATHS + 3
    quarantined.job.planner.context.liveness.forget("e4.x")
    beats(quarantined)
    abort = quarantined.job.last(GroupAborted)
    assert abort is not None
    assert abort.group == "g1"


def test_a_death_alone_counts_once_while_another_prompt_explains_the_earlier_ones(
    quarantined: TwoPrompts,
) -> None:
    assert quarantined.die() == {"g1.0"}
    assert quarantined.deaths() == {"g0.0": 3, "g1.0": 4}
    assert quarantined.die() == {"g0.0"}
    assert quarantined.job.last(GroupAborted) is None


def test_earlier_deaths_count_once_nothing_else_explains_them(quarantined: TwoPrompts) -> None:
    quarantined.store("g0.0", 4)
    assert quarantined.die() == {"g1.0"}
    abort = quarantined.job.last(GroupAborted)
    assert abort is not None
    assert abort.group == "g1"


def test_what_is_given_up_explains_the_deaths_of_the_others(quarantined: TwoPrompts) -> None:
    while quarantined.job.last(GroupAborted) is None:
        assert len(quarantined.die()) == 1
    assert quarantined.job.last(GroupAborted).group == "g1"
    assert set(quarantined.deaths().values()) == {0}
    assert not quarantined.state.quarantined
    assert not quarantined.state.survivors


ANSWER = "e0-0.0"


def evaluate(two: TwoPrompts, *, deaths: int = 0, given_up: tuple[int, ...] = ()) -> Evaluation:
    """An evaluation runs; its one answer is generated and waits for its score."""
    run = Evaluation(
        0,
        (AskedSet("heldout", range(1), 1),),
        0.0,
        attempts={ANSWER: 1},
        unscored={ANSWER: None},
        given_up=dict.fromkeys(given_up),
    )
    if deaths:
        run.deaths[ANSWER] = deaths
    two.job.planner.context.evaluation = run
    return run


def test_earlier_deaths_count_for_nothing_where_a_held_out_prompt_kills_engines(
    quarantined: TwoPrompts,
) -> None:
    evaluate(quarantined, given_up=(0,))
    quarantined.store("g0.0", 4)
    assert quarantined.die() == {"g1.0"}
    assert quarantined.job.last(GroupAborted) is None


@pytest.mark.parametrize("evaluated", [True, False])
def test_deaths_before_this_coordinator_count_for_nothing_where_an_evaluation_may_explain_them(
    quarantined: TwoPrompts, evaluated: bool
) -> None:
    context = quarantined.job.planner.context
    context.cohorts.inherited = frozenset({"g1"})
    if evaluated:
        context.spec = job_config(evaluation={"samples": 1, "everySteps": 50}).spec
        context.asked = asked_sets(context.spec, None)
    quarantined.store("g0.0", 4)
    assert quarantined.die() == {"g1.0"}
    assert (quarantined.job.last(GroupAborted) is None) is evaluated


def test_what_is_given_up_explains_the_deaths_of_held_out_answers(quarantined: TwoPrompts) -> None:
    run = evaluate(quarantined, deaths=1)
    quarantined.store("g0.0", 4)
    assert quarantined.die() == {"g1.0"}
    assert quarantined.job.last(GroupAborted).group == "g1"
    assert not run.deaths


def test_an_early_trial_that_is_given_up_explains_them_too(early: TwoPrompts) -> None:
    run = evaluate(early, deaths=1)
    early.store("g0.0", 3)
    assert early.job.last(GroupAborted).group == "g1"
    assert not run.deaths
