"""When engines change, and to what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.autoscale import (
    SCHEDULE_SECONDS,
    START_SECONDS,
    UNAVAILABLE_SECONDS,
    ScaledPool,
    ScalerState,
    Scaling,
    ScalingGoal,
    StepLoad,
    TrainingLoad,
    decide,
    load_after,
)
from rljob_core.messages import PoolSpeed, StepMetrics, StepStats

CHEAP = ScaledPool("cheap", price=1.0, least=0, most=10, wanted=1, ready=1)
FAST = ScaledPool("fast", price=2.5, least=0, most=10, wanted=1, ready=1)
SPEEDS = {"cheap": 100.0, "fast": 300.0}


def load(
    *,
    demand: float = 1000.0,
    waiting: float = 0.3,
    supply: float = 0.0,
    step: int = 50,
    steps: int | None = None,
    **changes: Any,
) -> TrainingLoad:
    """Of a job whose steps have 1,000 tokens, and as many are generated for them."""
    speeds = changes.pop("speeds", SPEEDS)
    busy = 1000.0 / demand
    each = StepLoad(
        trained=1000.0,
        generated=changes.pop("generated", 1000.0),
        busy=busy,
        waiting=busy * waiting / (1 - waiting),
        seconds=1000.0 / supply if supply else busy / (1 - waiting),
        **changes,
    )
    pools = {name: PoolSpeed(1, speed, speed) for name, speed in speeds.items()}
    return TrainingLoad(step=step, steps=step if steps is None else steps, recent=(each,) * 10, pools=pools)


def serving(pools: list[ScaledPool], scaling: Scaling) -> list[ScaledPool]:
    """The pools once the decision has been followed."""
    return [replace(p, wanted=n, ready=n) for p in pools for n in (scaling.replicas[p.name],)]


def test_engines_suffice_for_the_trainer_at_the_least_cost() -> None:
    _, scaling = decide(ScalerState(), ScalingGoal(), [CHEAP, FAST], load(), now=0.0)
    assert scaling.required == pytest.approx(1080)
    assert (scaling.replicas, scaling.cost) == ({"cheap": 2, "fast": 3}, 9.5)
    assert scaling.changed == "400 tokens/s are made, 1080 wanted, and the trainer waits 30% of its time"
    assert not scaling.limit


def test_what_engines_generate_costs_its_way_over_a_link_too() -> None:
    far = replace(FAST, token_price=1e-6)  # 1.08 an hour for 300 tokens a second
    _, scaling = decide(ScalerState(), ScalingGoal(), [CHEAP, far], load(), now=0.0)
    assert scaling.replicas == {"cheap": 8, "fast": 1}
    assert scaling.cost == pytest.approx(11.58)


def test_a_trainer_that_may_wait_gets_fewer() -> None:
    _, scaling = decide(ScalerState(), ScalingGoal(waiting=0.5), [CHEAP, FAST], load(), now=0.0)
    assert scaling.required == pytest.approx(1080 * 0.5 / 0.97)
    assert scaling.cost < 9.5


def test_what_is_generated_and_not_trained_counts() -> None:
    _, scaling = decide(ScalerState(), ScalingGoal(), [FAST], load(generated=1500.0), now=0.0)
    assert scaling.required == pytest.approx(1620)


def test_pools_that_others_scale_contribute() -> None:
    fixed = ScaledPool("fast", price=2.5, least=3, most=3, wanted=3, ready=3)
    _, scaling = decide(ScalerState(), ScalingGoal(), [CHEAP, fixed], load(supply=1000.0), now=0.0)
    assert scaling.replicas == {"cheap": 2, "fast": 3}


def test_one_engine_shows_how_fast_a_pool_is() -> None:
    new = ScaledPool("new", price=0.1, least=0, most=10, wanted=0)
    state, scaling = decide(ScalerState(), ScalingGoal(), [new, FAST], None, now=0.0)
    assert (scaling.replicas, scaling.changed) == (
        {"new": 1, "fast": 1},
        "one engine shows how fast new, fast is",
    )
    pools = serving([new, FAST], scaling)
    state, scaling = decide(state, ScalingGoal(), pools, load(speeds={"new": 90.0, "fast": 300.0}), now=9.0)
    assert scaling.replicas == {"new": 9, "fast": 1}


def test_a_speed_is_remembered_when_the_pool_has_no_engine() -> None:
    state, _ = decide(ScalerState(), ScalingGoal(), [CHEAP, FAST], load(), now=0.0)
    state, _ = decide(state, ScalingGoal(), [CHEAP, FAST], load(speeds={}), now=1.0)
    assert dict(state.speeds) == SPEEDS


# ------------------------------------------------------------------------------------------- when they change


def test_changes_wait_for_the_window_and_for_a_saving_worth_it() -> None:
    goal, pools = ScalingGoal(), [replace(FAST, wanted=4, ready=4)]
    state, scaling = decide(ScalerState(changed=0.0), goal, pools, load(waiting=0.0), now=100.0)
    assert (scaling.replicas, scaling.retry_at) == (
        {"fast": 4},
        None,
    )  # three would make 900 of 1,080 tokens/s
    slower = load(demand=700.0, waiting=0.0)
    state, scaling = decide(state, goal, pools, slower, now=200.0)
    assert (scaling.replicas, scaling.retry_at) == ({"fast": 4}, 800.0)
    state, scaling = decide(state, goal, pools, slower, now=700.0)
    assert (scaling.replicas, scaling.retry_at) == ({"fast": 4}, 800.0)
    # Had it been needed meanwhile, the window would begin again.
    needed, _ = decide(state, goal, pools, load(waiting=0.0), now=750.0)
    assert decide(needed, goal, pools, slower, now=800.0)[1].replicas == {"fast": 4}
    _, scaling = decide(state, goal, pools, slower, now=800.0)
    assert scaling.replicas == {"fast": 3}
    assert scaling.changed == "7.50 instead of 10.00 an hour suffice for 756 tokens/s"


def test_less_than_six_percent_is_not_worth_a_change() -> None:
    pools = [replace(CHEAP, most=40, wanted=20, ready=20)]
    for demand, expected in ((1700.0, 20), (1660.0, 18)):  # 19 would suffice for the first
        state = ScalerState(saving_since=0.0)
        _, scaling = decide(state, ScalingGoal(), pools, load(demand=demand, waiting=0.0), now=600.0)
        assert scaling.replicas == {"cheap": expected}


@pytest.mark.parametrize(("waiting", "changes"), [(0.11, False), (0.2, True)])
def test_a_trainer_that_starves_cuts_the_window_short(waiting: float, changes: bool) -> None:
    state = ScalerState(demand=1000.0, changed=0.0, changed_step=40)
    pools = [replace(FAST, wanted=3, ready=3)]
    _, scaling = decide(state, ScalingGoal(), pools, load(waiting=waiting, supply=900.0), now=60.0)
    assert (scaling.replicas["fast"] > 3) == changes
    starting = [replace(FAST, wanted=3, ready=2)]
    _, scaling = decide(state, ScalingGoal(), starting, load(waiting=waiting, supply=900.0), now=60.0)
    assert scaling.replicas == {"fast": 3}


def test_a_budget_and_bounds_that_are_changed_hold_at_once() -> None:
    state, pools = ScalerState(changed=0.0), [replace(FAST, wanted=4, ready=4)]
    _, scaling = decide(state, ScalingGoal(budget=6.0), pools, load(supply=1200.0), now=1.0)
    assert scaling.replicas == {"fast": 2}
    assert (scaling.limit, scaling.message) == (
        "BudgetTooSmall",
        "engines make 600 of the 1080 tokens per second that the trainer can take: budgetPerHour, 6.00, allows no more",
    )
    _, scaling = decide(
        state, ScalingGoal(), [replace(FAST, most=2, wanted=4, ready=4)], load(supply=1200.0), now=1.0
    )
    assert scaling.replicas == {"fast": 2}
    assert (scaling.limit, scaling.changed) == ("MaxReplicas", "the pools' bounds have changed")


def test_idle_engines_get_no_others_beside_them() -> None:
    idle = replace(load(waiting=0.6), pools={"fast": PoolSpeed(1, 90.0, 300.0, busy=0.3)})
    _, scaling = decide(ScalerState(), ScalingGoal(), [FAST], idle, now=0.0)
    assert scaling.replicas == {"fast": 1}
    assert scaling.limit == "EnginesIdle"
    assert "maxStaleness" in scaling.message
    idle = replace(load(waiting=0.0), pools=idle.pools)
    _, scaling = decide(ScalerState(), ScalingGoal(), [FAST], idle, now=0.0)
    assert (scaling.replicas, scaling.limit) == (
        {"fast": 1},
        "",
    )  # which is fine, as the trainer does not wait


def test_a_new_operator_continues_with_what_the_one_before_knew() -> None:
    state = ScalerState(demand=1000.0, changed=0.0, speeds=SPEEDS)
    pools = [replace(FAST, wanted=4, ready=4)]
    after, scaling = decide(state, ScalingGoal(), pools, load(demand=300.0, steps=2, waiting=0.0), now=9e9)
    assert (after.demand, scaling.replicas) == (1000.0, {"fast": 4})
    after, _ = decide(
        state, ScalingGoal(), pools, load(demand=900.0, step=12, steps=11, waiting=0.0), now=9e9
    )
    assert after.demand == pytest.approx(900)
    after, scaling = decide(state, ScalingGoal(), pools, None, now=9e9)
    assert (after.demand, scaling.replicas) == (1000.0, {"fast": 4})


def test_of_a_new_job_the_first_steps_are_all_that_is_known() -> None:
    state = ScalerState(demand=2000.0)  # by its first step
    after, _ = decide(state, ScalingGoal(), [FAST], load(step=3), now=0.0)
    assert after.demand == pytest.approx(1000)


# ------------------------------------------------------------------------------------------- deadlines


def test_a_deadline_adds_engines_only_where_the_job_would_end_late() -> None:
    patient = ScalingGoal(waiting=0.8, seconds_left=1000.0, steps_left=800)  # of which it needs 800 s
    _, scaling = decide(ScalerState(), patient, [FAST], load(), now=0.0)
    assert scaling.required == pytest.approx(1080 * 0.8 / 0.97)
    assert scaling.replicas == {"fast": 3}
    _, scaling = decide(ScalerState(), replace(patient, seconds_left=1e6), [FAST], load(), now=0.0)
    assert scaling.required == pytest.approx(1080 * 0.2 / 0.97)


@pytest.mark.parametrize("left", [700.0, 0.0, -5.0])
def test_a_deadline_that_no_engines_can_meet_is_said(left: float) -> None:
    goal = ScalingGoal(waiting=0.8, seconds_left=left, steps_left=800)
    _, scaling = decide(ScalerState(), goal, [FAST], load(), now=0.0)
    assert scaling.limit == "DeadlineTooEarly"
    assert "the trainer alone needs 13 min" in scaling.message
    assert scaling.replicas == {"fast": 4}


# ------------------------------------------------------------------------------------------- bad input


def test_bounds_that_cost_more_than_the_budget_win() -> None:
    pools = [replace(FAST, least=4, wanted=4, ready=4), CHEAP]
    _, scaling = decide(ScalerState(), ScalingGoal(budget=5.0), pools, load(), now=0.0)
    assert scaling.replicas == {"fast": 4, "cheap": 0}
    assert scaling.limit == "MinReplicasExceedBudget"
    assert "10.00 an hour, more than budgetPerHour, 5.00" in scaling.message


def test_prices_of_zero() -> None:
    pools = [replace(CHEAP, price=0.0), replace(FAST, price=0.0)]
    _, scaling = decide(ScalerState(), ScalingGoal(budget=0.0), pools, load(), now=0.0)
    assert (scaling.replicas, scaling.limit) == ({"cheap": 0, "fast": 4}, "")
    _, scaling = decide(
        ScalerState(saving_since=0.0),
        ScalingGoal(),
        [replace(FAST, price=0.0, wanted=9, ready=9)],
        load(waiting=0.0),
        now=600.0,
    )
    assert scaling.replicas == {"fast": 4}


def test_a_pool_that_never_starts_is_replaced_and_tried_again_later() -> None:
    pools = [replace(CHEAP, wanted=10, ready=1, late_seconds=START_SECONDS + 1), FAST]
    state, scaling = decide(ScalerState(changed=0.0), ScalingGoal(), pools, load(), now=1e4)
    assert scaling.replicas == {"cheap": 0, "fast": 4}
    assert scaling.limit == "PoolNotStarting"
    assert "engines of cheap have not started within 15 min" in scaling.message
    pools = serving(pools, scaling)
    pools = [replace(pool, late_seconds=0.0) for pool in pools]
    later = 1e4 + UNAVAILABLE_SECONDS
    state, scaling = decide(state, ScalingGoal(), pools, load(), now=later - 1)
    assert scaling.replicas == {"cheap": 0, "fast": 4}
    state, scaling = decide(state, ScalingGoal(), pools, load(demand=1500.0), now=later + 1)
    assert scaling.replicas["cheap"] > 0
    assert not scaling.limit


def test_engines_that_nobody_hears_stay_as_they_are_and_others_take_their_place_within_bounds() -> None:
    """As those of a site that is away: they may serve or not, and cannot be scaled."""
    away = replace(FAST, wanted=3, ready=0, late_seconds=START_SECONDS + 1, unheard=True)
    pools = [replace(CHEAP, most=6), away]
    state = ScalerState(changed=0.0)
    for now in (1e4, 2e4, 3e4):
        state, scaling = decide(state, ScalingGoal(), pools, load(), now=now)
        assert scaling.replicas == {"cheap": 6, "fast": 3}
        assert (scaling.speed, scaling.limit) == (600.0, "MaxReplicas")
        assert not state.unavailable
        pools = [replace(pools[0], wanted=6, ready=6), away]
    none = replace(away, wanted=0)
    assert decide(state, ScalingGoal(), [pools[0], none], load(), now=3e4)[1].replicas["fast"] == 0
    heard = [pools[0], replace(away, ready=3, late_seconds=0.0, unheard=False)]
    state, _ = decide(state, ScalingGoal(), heard, load(waiting=0.0), now=4e4)
    _, scaling = decide(state, ScalingGoal(), heard, load(waiting=0.0), now=5e4)
    assert scaling.replicas == {"cheap": 2, "fast": 3}, "they are not needed any more"


def test_what_engines_make_is_learned_while_a_site_is_away() -> None:
    away = replace(FAST, wanted=3, ready=0, unheard=True)
    pools = [replace(CHEAP, wanted=4, ready=4, most=4), away]
    state, _ = decide(ScalerState(), ScalingGoal(), pools, load(supply=200.0), now=1e4)
    assert state.efficiency == 0.5


def unscheduled(seconds: float) -> ScaledPool:
    """A pool of which one engine of four has a node."""
    return replace(CHEAP, wanted=4, ready=1, late_seconds=seconds, unscheduled_seconds=seconds)


def test_engines_that_find_no_node_are_replaced_before_they_would_be_late() -> None:
    assert SCHEDULE_SECONDS < START_SECONDS
    fast = replace(FAST, wanted=2, ready=2)
    state, scaling = decide(
        ScalerState(changed=0.0), ScalingGoal(), [unscheduled(SCHEDULE_SECONDS), fast], load(), now=500.0
    )
    assert scaling.limit != "PoolNotStarting"
    assert scaling.replicas["cheap"] >= 4
    state, scaling = decide(
        state, ScalingGoal(), [unscheduled(SCHEDULE_SECONDS + 1), fast], load(), now=501.0
    )
    assert scaling.limit == "PoolNotStarting"
    assert "found no node within 5 min" in scaling.message
    assert scaling.changed
    assert scaling.replicas == {"cheap": 0, "fast": 4}


def test_engines_that_find_no_node_wait_for_one_where_no_other_pool_may_have_more() -> None:
    waiting = unscheduled(SCHEDULE_SECONDS + 1)
    for others in (
        [],
        [replace(FAST, wanted=9, ready=9, most=9, least=9)],
        [replace(FAST, wanted=2, most=2)],
        [replace(FAST, wanted=2, unscheduled_seconds=SCHEDULE_SECONDS + 1)],
    ):
        state, scaling = decide(
            ScalerState(changed=0.0), ScalingGoal(), [waiting, *others], load(), now=500.0
        )
        assert not state.unavailable
        assert scaling.replicas["cheap"] >= 4


def test_a_profile_that_lies_by_ten_is_found_out() -> None:
    """Engines make a tenth of what they promise: after a while, there are as many as the trainer needs."""
    state, goal, now, step = ScalerState(), ScalingGoal(), 0.0, 20
    pools = [replace(CHEAP, most=200)]
    lying = {"cheap": 1000.0}
    changes = 0
    for _ in range(20):
        ready = pools[0].ready
        supply = min(100.0 * ready, 1000.0)
        waiting = max(0.0, 1 - supply / 1000.0)
        seen = load(waiting=min(waiting, 0.99), supply=supply, step=step, speeds=lying)
        state, scaling = decide(state, goal, pools, seen, now=now)
        changes += bool(scaling.changed)
        pools = serving(pools, scaling)
        now, step = now + 120.0, step + 20
    assert 10 <= pools[0].ready <= 12
    assert changes <= 3


def test_interruptions_make_a_pool_slower() -> None:
    spot = replace(CHEAP, interruptions=2.0, start_seconds=900.0, most=20)
    _, scaling = decide(ScalerState(), ScalingGoal(), [spot], load(), now=0.0)
    assert scaling.replicas == {"cheap": 17}  # two thirds of 100 tokens/s each


NUMBERS = st.one_of(st.just(0.0), st.floats(0, 1e9), st.just(1e12))


@given(
    pools=st.lists(
        st.builds(
            lambda n, least, more, **rest: ScaledPool(f"p{n}", least=least, most=least + more, **rest),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 10_000),
            price=NUMBERS,
            wanted=st.one_of(st.none(), st.integers(0, 10_000)),
            ready=st.integers(0, 20_000),
            interruptions=st.floats(0, 3600),
            late_seconds=NUMBERS,
            unscheduled_seconds=NUMBERS,
        ),
        max_size=4,
        unique_by=lambda pool: pool.name,
    ),
    goal=st.builds(
        ScalingGoal,
        waiting=st.floats(0, 0.9),
        budget=st.one_of(st.none(), NUMBERS),
        seconds_left=st.one_of(st.none(), st.floats(-1e9, 1e9)),
        steps_left=st.integers(0, 10**7),
        window=st.floats(0, 86400),
    ),
    seen=st.builds(
        lambda steps, speeds, **figures: TrainingLoad(
            step=steps,
            steps=steps,
            recent=(StepLoad(**figures),) * min(steps, 10),
            pools={name: PoolSpeed(1, 0.0, speed) for name, speed in speeds.items()},
        ),
        st.integers(0, 50),
        st.dictionaries(st.sampled_from(["p0", "p1", "p2", "p9"]), NUMBERS),
        **dict.fromkeys(("trained", "generated", "busy", "waiting", "seconds"), NUMBERS),
    ),
    now=NUMBERS,
)
def test_whatever_is_said_the_bounds_hold_and_nothing_is_raised(
    pools: list[ScaledPool], goal: ScalingGoal, seen: TrainingLoad, now: float
) -> None:
    state = ScalerState()
    for _ in range(2):
        state, scaling = decide(state, goal, pools, seen, now=now)
        assert all(pool.least <= scaling.replicas[pool.name] <= pool.most for pool in pools)
        least = sum(pool.least * pool.price for pool in pools)
        if goal.budget is not None and least <= goal.budget:
            assert scaling.cost <= goal.budget * (1 + 1e-6) + 1e-6
        pools = serving(pools, scaling)


# ------------------------------------------------------------------------------------------- the load


def line(step: int, *, waiting: float = 1.0, tokens: int = 1000, **changes: Any) -> StepMetrics:
    """A step of 10 s of training, and one of publishing."""
    stats = StepStats(tokens=tokens, seconds_waiting=waiting, seconds_training=10.0, seconds_publishing=1.0)
    fields = {"seconds": 12.0 * step, "tokens_generated": 1200 * step} | changes
    return StepMetrics(step=step, version=step, reward_mean=0.0, stats=stats, **fields)


def test_the_load_is_that_of_the_last_steps() -> None:
    seen = None
    for step in range(1, 60):
        seen = load_after(seen, line(step))
    assert seen is not None
    assert (seen.step, seen.steps) == (59, 59)
    assert seen.demand == pytest.approx(1000 / 11)
    assert seen.overhead == pytest.approx(1.2)
    assert seen.supply == pytest.approx(100)
    assert seen.waiting == pytest.approx(1 / 12)
    assert seen.idle == 0
    seen = load_after(
        seen, line(60, pools={"a": PoolSpeed(2, 90.0, 60.0, busy=0.7), "b": PoolSpeed(2, 30.0, 30.0)})
    )
    assert seen.idle == pytest.approx(0.15)


def test_one_slow_step_moves_the_load_little() -> None:
    seen = None
    for step in range(1, 60):
        seen = load_after(seen, line(step))
    assert seen is not None
    after = load_after(seen, line(60, tokens=3000))
    assert after.demand / seen.demand == pytest.approx(1.2)


def test_after_engines_have_come_only_the_steps_with_them_count() -> None:
    seen = None
    for step in range(1, 21):
        seen = load_after(seen, line(step, waiting=30.0, engines=2))
    for step in range(21, 24):
        seen = load_after(seen, line(step, waiting=0.0, engines=5))
    assert seen is not None
    assert seen.waiting > 0.5
    assert (seen.settled.waiting, len(seen.settled.recent)) == (0.0, 3)


def test_lines_that_are_no_steps_or_cannot_be_true_change_nothing_but_speeds() -> None:
    seen = load_after(None, line(1))
    speeds = {"a": PoolSpeed(1, 5.0, 7.0), "b": PoolSpeed(1, 5.0, float("nan"))}
    assert load_after(seen, StepMetrics(step=1, version=1, seconds=3.0, pools=speeds)) == replace(
        seen, pools={"a": PoolSpeed(1, 5.0, 7.0)}
    )
    for bad in (float("nan"), float("inf"), -1e3, 1e300):
        assert load_after(seen, line(2, waiting=bad)) == seen
    assert load_after(seen, line(2, tokens_generated=10**400)) == seen


def test_a_coordinator_that_begins_again_is_no_negative_speed() -> None:
    seen = None
    for step in range(1, 30):
        seen = load_after(seen, line(step))
    seen = load_after(seen, line(30, seconds=5.0, tokens_generated=100))
    assert seen.supply == pytest.approx(100, rel=0.05)
    assert seen.overhead == pytest.approx(1.2, rel=0.05)
