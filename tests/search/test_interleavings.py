"""The protocol's invariants hold in all interleavings of small jobs, and on random walks through larger jobs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from exploration import SYNCHRONOUS, WIDER, any_job, explore, small_job, walk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from model_sites import POOLS, ModelOverSites
from tests.night import some


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("changes", "scope"),
    [
        ({"steps": 3}, {"engines": 3, "deaths": 0}),
        ({"steps": 2, "data": {"groupSize": 2}}, {"engines": 2, "deaths": 0}),
        ({"steps": 3}, {"engines": 2, "deaths": 0, "change": SYNCHRONOUS}),
        (
            {"steps": 3, "pipeline": {"mode": "Streaming", "maxStaleness": 0}},
            {"engines": 2, "deaths": 0, "change": WIDER},
        ),
        ({"steps": 1}, {"engines": 2, "deaths": 1}),
        ({"steps": 2}, {"engines": 1, "deaths": 0, "losses": 1}),
        ({"steps": 2, "pipeline": {"mode": "Synchronous", "maxStaleness": 0}}, {"engines": 2, "deaths": 1}),
        ({"steps": 1, "pipeline": {"maxAttempts": 1}}, {"engines": 1, "deaths": 0, "poison": "g0"}),
    ],
    ids=[
        "three engines",
        "siblings",
        "a lower bound",
        "a higher bound",
        "a death",
        "a loss",
        "a death, synchronous",
        "poison",
    ],
)
def test_every_interleaving_of_a_small_job(changes: dict[str, Any], scope: dict[str, Any]) -> None:
    found = explore(small_job(**changes), **scope)
    assert found.ends["Succeeded"] > 0


@pytest.mark.parametrize(
    ("changes", "scope"),
    [
        ({"steps": 2}, {"heals": False}),
        ({"steps": 2}, {"heals": True}),
        pytest.param({"steps": 2, "data": {"groupSize": 2}}, {"heals": False}, marks=pytest.mark.nightly),
        pytest.param({"steps": 1}, {"deaths": 1}, marks=pytest.mark.nightly),
        pytest.param({"steps": 3}, {"heals": False}, marks=pytest.mark.nightly),
    ],
    ids=["it stays away", "it returns", "siblings", "a death", "three steps"],
)
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_interleaving_of_a_job_with_a_site_whose_link_is_cut(
    changes: dict[str, Any], scope: dict[str, Any]
) -> None:
    job = small_job(rollout={"pools": POOLS}, **changes)
    found = explore(job, kind=ModelOverSites, engines=2, cuts=1, **scope)
    assert found.ends["Succeeded"] > 0


@pytest.mark.parametrize("first", range(0, 400, 200))
def test_any_way_through_a_job_with_a_site_whose_link_is_cut(first: int) -> None:
    ends = [
        walk(random.Random(s), sites=True, slow="g0.0" if s % 4 else "", poison="" if s % 4 else "g1")
        for s in range(first, first + 200)
    ]
    assert sum(model.planner.state.attempts_failed["SiteAway"] for model in ends) > 20


@pytest.mark.smoke
@pytest.mark.parametrize("first", some(range(0, 2000, 500), 2))
def test_any_way_through_any_job(first: int) -> None:
    for seed in range(first, first + 500):
        walk(random.Random(seed))


@pytest.mark.parametrize("first", range(0, 600, 300))
def test_any_way_through_a_job_with_poison(first: int) -> None:
    for seed in range(first, first + 300):
        walk(random.Random(seed), poison=f"g{seed % 3}")


@pytest.mark.computes
@pytest.mark.slow
@pytest.mark.timeout(3600)  # minutes alone, but beside CI's other lanes it has had less than half a processor
@pytest.mark.parametrize(
    ("engines", "zombies"),
    [  # with processes that live on, a search visits all states of that without them, and more
        (2, True),
        pytest.param(3, True, marks=pytest.mark.nightly),
        pytest.param(3, False, marks=pytest.mark.nightly),
    ],
    ids=["two engines", "three engines", "three engines, whose processes are gone"],
)
def test_every_interleaving_of_two_groups_three_versions_and_a_death(engines: int, zombies: bool) -> None:
    """Of processes that are taken for dead."""
    found = explore(small_job(steps=2), engines=engines, deaths=1, zombies=zombies)
    assert found.ends["Succeeded"] > 0


def test_trajectories_continue_when_their_engines_die_or_drain() -> None:
    ends = [walk(random.Random(seed), slow=f"g{seed % 4}.0") for seed in range(600)]
    assert sum(model.planner.state.counts["resumed"] for model in ends) > 20


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_interleaving_of_a_death_and_what_was_published_before() -> None:
    found = explore(small_job(steps=1), engines=2, deaths=1, progress=2)
    assert found.ends["Succeeded"] > 0


class AnyJob(RuleBasedStateMachine):
    """A job of any shape, of which anything may happen next; then it goes to its end."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.model = any_job(random.Random(seed))

    @rule(which=st.integers(0, 10**6))
    def something_happens(self, which: int) -> None:
        choices = self.model.choices()
        assert choices or self.model.finished, "[progress] nothing can happen any more"
        if choices:
            self.model.do(choices[which % len(choices)])

    @rule(which=st.integers(0, 10**6))
    def something_goes_wrong(self, which: int) -> None:
        if mishaps := self.model.mishaps():
            self.model.do(mishaps[which % len(mishaps)])

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.replays()
        # From here on nobody dies, nothing is lost, and it comes to its end.
        self.model.deaths = self.model.losses = self.model.publishing = 0
        self.model.restless, self.model.late = False, []
        chance = random.Random(0)
        for _ in range(10_000):
            choices = self.model.choices()
            if not choices:
                break
            self.model.do(chance.choice(choices))
        assert self.model.finished == "Succeeded"
        self.model.replays()


TestAnyJob = AnyJob.TestCase
TestAnyJob.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
