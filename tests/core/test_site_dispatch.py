"""Dispatch over sites: links, prices and the lag of weights are weighed, and a site whose outbox fills gets no work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_balancing import SLOW, Job
from test_engine_choice import FAST, view
from test_sites import HERE, JOB, THERE, TwoSites, at_site
from test_sites import POOLS as SITES
from world import SimulatedEngine, job_config

from rljob_core.actions import ProgressFound, SendToEngine, SignalSeen, SiteHeartbeat
from rljob_core.job_state import JobState
from rljob_core.lengths import Estimate
from rljob_core.messages import EngineProfile, EngineSignal, Generate
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView, choose
from rljob_core.planner.far_engines import FarEngines, awaits_newest, recount
from rljob_core.planner.placement import SiteQueues, open_engines
from rljob_core.planner.site_transfers import HELD_SECONDS, SAID_SECONDS, SiteTransfer, SiteTransfers
from rljob_core.site_costs import LINK_SHARE, LinkCosts
from rljob_core.spec import SiteLinkSpec

WAN = SiteLinkSpec(bits_per_second=100_000_000, latency_seconds=0.06)
POOLS = [
    {"name": "a", "costPerHour": "2"},
    {"name": "b", "site": "west", "costPerHour": "2"},
    {"name": "c", "site": "east", "costPerHour": "2"},
]
SHORT, LONG = 0, 1
"""Prompts of which the answers are short, and long."""


def context(**links: SiteLinkSpec) -> PlannerContext:
    """A job with pools at the hub and at two sites, whose answers to two prompts are known to differ."""
    config = job_config(rollout={"pools": POOLS, "sampling": {"maxTokens": 8192}}, data={"groupSize": 1})
    found = PlannerContext(
        config.model_copy(update={"links": {"west": WAN, **links}}),
        prefetch=0.25,
        state=JobState(),
        held_out=None,
    )
    found.lengths.known = {SHORT: Estimate(50.0, 0.1), LONG: Estimate(5000.0, 0.1)}
    found.lengths.correlation = 0.9
    return found


def near(name: str = "near", **changes: Any) -> EngineView:
    return replace(view(name, FAST, **changes), pool="a")


def far(name: str = "far", *, site: str = "west", **changes: Any) -> EngineView:
    return replace(view(name, FAST, **changes), pool="b" if site == "west" else "c", site=site)


def say(job: PlannerContext, engine: EngineView, **changes: Any) -> bool:
    """The engine signals; whether its site is held back from then on, or no longer."""
    known = {"epoch": 0, "version": engine.version, "held": 0, "slots": engine.slots, "running": 0}
    signal = EngineSignal(
        engine.engine, engine.pool, waiting=0, tokens=0, site=engine.site, **{**known, **changes}
    )
    return job.transfers.heard(engine, signal, job.now)


def chosen(
    job: PlannerContext, engines: list[EngineView], prompt: int | None, *, crowded: bool = False
) -> str:
    """The engine for an answer to a prompt, which both ways to choose agree on."""
    for engine in engines:
        job.liveness.engines[engine.engine] = engine
        if engine.site:
            job.transfers.of(engine.site)
    recount(job)
    shares = FarEngines(job, crowded=crowded)

    def share(engine: EngineView) -> float:
        return shares.share(engine, prompt, 0)

    one = choose(engines, min_version=0, waits=True, prefetch=0.25, share=share)
    other = SiteQueues(engines, prefetch=0.25, tokens=0.0).choose(min_version=0, waits=True, share=share)
    assert one is other is not None
    return one.engine


def test_of_equal_engines_the_near_one_is_chosen() -> None:
    job = context()
    for prompt in (SHORT, LONG, None):
        assert chosen(job, [far("a far one"), near()], prompt) == "near"


def test_a_far_engine_that_is_emptier_is_chosen() -> None:
    assert chosen(context(), [far(), near(assigned=40)], LONG) == "far"


def test_where_more_waits_than_near_engines_take_long_answers_go_far_and_short_ones_stay() -> None:
    job = context()
    assert chosen(job, [far(), near()], LONG, crowded=True) == "far"
    assert chosen(job, [far("a far one"), near()], SHORT, crowded=True) == "near"


def test_lengths_that_nobody_knows_well_decide_nothing() -> None:
    job = context()
    job.lengths.correlation = 0.1
    shares = FarEngines(job, crowded=True)
    assert shares.share(far(), LONG, 0) == shares.share(far(), SHORT, 0) == 1.0


def test_a_link_that_costs_more_than_its_engines_is_used_last() -> None:
    dear = SiteLinkSpec(bits_per_second=10**8, latency_seconds=0.06, price_per_gigabyte="100000")
    job = context(east=dear)
    assert chosen(job, [far(assigned=30), far("e", site="east")], LONG) == "far"
    assert (
        chosen(job, [far(assigned=64), far("e", site="east")], LONG) == "e"
    )  # before anything waits for a slot


def test_a_slow_link_counts_by_what_is_stored_before() -> None:
    job = context(east=WAN)
    engines = [far(), far("e", site="east")]
    assert chosen(job, engines, LONG) == "e"  # by name
    say(job, engines[1], outbox_bytes=100_000_000, outbox_limit=1 << 30)
    assert chosen(job, engines, LONG) == "far"


def test_what_needs_weights_that_are_not_there_goes_where_they_are() -> None:
    job = context()
    shares = FarEngines(job, crowded=False)
    behind = far()
    say(job, behind)
    job.transfers.committed(1, 0.0)
    job.now = 100.0
    assert shares.share(behind, LONG, 1) < shares.share(behind, LONG, 0) / 2


def test_the_lag_is_that_of_the_newest_version_that_came() -> None:
    transfers = SiteTransfers({"west": WAN})
    engine = far()
    signal = EngineSignal("far", "b", 0, 0, 0, 64, 0, 0, 0, site="west")
    transfers.heard(engine, signal, 0.0)
    assert transfers.wait("west", 1.0) == 0.0
    transfers.committed(1, 10.0)
    assert transfers.wait("west", 13.0) == 3.0  # as long again
    transfers.heard(engine, replace(signal, version=1), 14.0)
    assert transfers.wait("west", 14.0) == 0.0
    transfers.committed(2, 20.0)
    assert transfers.wait("west", 21.0) == 3.0
    assert transfers.wait("west", 30.0) == 10.0
    transfers.committed(1, 40.0)  # the user has gone back
    assert transfers.wait("west", 50.0) == 0.0


def test_an_answer_begins_under_older_weights_where_newer_ones_take_longer_than_it() -> None:
    job = context()
    engine = far()
    say(job, engine)
    job.transfers.committed(1, 0.0)
    job.now = 10.0
    assert not awaits_newest(job, engine, "g0.0")
    assert awaits_newest(job, engine, "g1.0")
    assert awaits_newest(job, near(), "g0.0")
    say(job, replace(engine, version=1), version=1)
    assert awaits_newest(job, engine, "g0.0")


def test_a_site_whose_outbox_nobody_can_read_any_more_gets_work_again() -> None:
    job, engine, limit = context(), far(), 1 << 30
    assert say(job, engine, outbox_bytes=limit // 2, outbox_limit=limit)
    job.now += 2 * SAID_SECONDS - 1
    assert not say(job, engine)
    assert job.transfers.held_back == ("west",)
    job.now += 1
    assert say(job, engine)
    assert not job.transfers.held_back
    assert job.transfers.of("west").outbox == 0


def test_a_site_is_held_back_before_its_outbox_fills_and_gets_work_again_when_it_drains() -> None:
    job, engine, limit = context(), far(), 1 << 30
    assert not say(job, engine, outbox_limit=limit)
    assert say(job, engine, outbox_bytes=limit // 2, outbox_limit=limit)
    assert job.transfers.held_back == ("west",)
    assert job.transfers.full == {"west"}
    assert not say(job, engine, outbox_bytes=limit // 4, outbox_limit=limit)
    assert not say(job, engine, outbox_bytes=100_000, outbox_limit=limit), "another one may say other things"
    job.now += 2 * SAID_SECONDS
    assert say(job, engine, outbox_bytes=100_000, outbox_limit=limit)
    assert job.transfers.held_back == ()


@pytest.mark.parametrize("begin", [0.0, 1.5, 4.9])
def test_engines_that_ask_at_different_times_do_not_hold_a_site_back_by_turns(begin: float) -> None:
    """Its outbox drains fast; one engine says what it has read five seconds before the other one."""
    job, limit, engines = context(), 1 << 30, [far("a"), far("b")]
    changes, outbox = 0, [600 << 20, 20 << 20, 0, 0, 0, 0]
    for second in range(25):
        job.now = begin + second
        for delay, engine in enumerate(engines):
            read = outbox[max((second - 4 * delay) // 5, 0)]
            changes += say(job, engine, outbox_bytes=read, outbox_limit=limit)
    assert (changes, job.transfers.held_back) == (2, ())


def test_a_site_is_held_back_when_its_link_needs_long_for_what_is_stored() -> None:
    job, engine = context(), far()
    rate = LinkCosts.of(WAN).bytes_per_second
    assert rate is not None
    assert say(job, engine, outbox_bytes=int(rate * HELD_SECONDS), outbox_limit=0)
    job.now += 2 * SAID_SECONDS
    assert say(job, engine, outbox_bytes=int(rate * HELD_SECONDS / 2) - 1, outbox_limit=0)


@given(
    limit=st.integers(10**5, 10**8),
    outbox=st.integers(0, 10**8),
    engines=st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_what_is_sent_never_fills_an_outbox(limit: int, outbox: int, engines: list[int]) -> None:
    """Whatever length all of it becomes, and if the link carries nothing meanwhile."""
    job = context()
    views = [far(f"far-{n}", assigned=assigned, slots=256) for n, assigned in enumerate(engines)]
    for one in views:
        job.liveness.engines[one.engine] = one
        say(job, one, outbox_bytes=outbox, outbox_limit=limit)
    recount(job)
    sent, before = 0, sum(engines)
    while not job.transfers.full and sent < 10_000:
        job.transfers.sent("west")
        sent += 1
    most = outbox + (before + sent) * job.transfers.largest
    assert most <= limit or sent == 0 or (sent == 1 and not before and not outbox)


@given(answers=st.lists(st.floats(1, 8192), min_size=2, max_size=2, unique=True), load=st.integers(0, 60))
def test_the_longer_an_answer_the_more_of_a_far_engine_counts(answers: list[float], load: int) -> None:
    job = context()
    short, long = sorted(answers)
    job.lengths.known = {SHORT: Estimate(short, 0.0), LONG: Estimate(long, 0.0)}
    shares = FarEngines(job, crowded=False)
    engine = far(assigned=load)
    assert 0 < shares.share(engine, SHORT, 0) <= shares.share(engine, LONG, 0) <= 1


@given(
    loads=st.lists(st.integers(0, 80), min_size=1, max_size=6),
    number=st.integers(1, 200),
    prompts=st.lists(st.sampled_from([SHORT, LONG, None]), min_size=1, max_size=8),
)
def test_jobs_of_one_site_decide_as_without_links(
    loads: list[int], number: int, prompts: list[int | None]
) -> None:
    job = context()
    engines = [near(f"e{n}", assigned=load) for n, load in enumerate(loads)]
    others = [replace(engine) for engine in engines]
    queue = SiteQueues(engines, prefetch=0.25, tokens=100.0)
    shares = FarEngines(job, crowded=True)
    for index in range(number):
        prompt = prompts[index % len(prompts)]
        plain = choose(others, min_version=0, waits=True, prefetch=0.25, tokens=100.0)
        found = queue.choose(
            min_version=0, waits=True, share=lambda e, prompt=prompt: shares.share(e, prompt, 0)
        )
        assert (found and found.engine) == (plain and plain.engine)
        if found is None or plain is None:
            return
        found.assigned += 1
        plain.assigned += 1


def test_a_link_of_which_nothing_is_known_costs_nothing() -> None:
    costs = LinkCosts.of(None)
    assert (costs.latency, costs.seconds(1e12), costs.price) == (0.0, 0.0, 0.0)
    assert FarEngines(context(west=SiteLinkSpec()), crowded=False).share(far(), SHORT, 0) == 1.0


@pytest.mark.parametrize("rate", [None, 10**8])
def test_costs_of_a_link(rate: int | None) -> None:
    link = SiteLinkSpec(bits_per_second=rate, latency_seconds=0.06, price_per_gigabyte="0.05")
    costs = LinkCosts.of(link)
    assert costs.seconds(LINK_SHARE * 1e8 / 8) == (0.0 if rate is None else 1.0)
    assert costs.price * 1e9 == pytest.approx(0.05)


def test_engines_of_a_full_site_are_open_to_nothing_held_out_answers_among_it() -> None:
    job = context()
    for engine in (near(), far()):
        job.liveness.engines[engine.engine] = engine
        job.liveness.has_changed(engine)
    assert [engine.engine for engine in open_engines(job, ())] == ["near", "far"]
    say(job, job.liveness.engines["far"], outbox_bytes=600, outbox_limit=1000)
    assert [engine.engine for engine in open_engines(job, ())] == ["near"]


def test_an_outbox_that_is_smaller_than_an_answer_takes_one_if_it_is_empty() -> None:
    """It may take less than it could, and else the site would never generate anything."""
    assert SiteTransfer(LinkCosts(), limit=10).takes(100)
    assert not SiteTransfer(LinkCosts(), limit=10, outbox=1).takes(100)
    assert not SiteTransfer(LinkCosts(), limit=10, under_way=100).takes(100)


class Backlog(TwoSites):
    """A job whose site says how full its outbox is."""

    outbox = 0

    def signal(self, engine: SimulatedEngine) -> None:
        if self.pools.get(engine.name) != "b":
            super().signal(engine)
            return
        held = len(engine.running) + len(engine.waiting)
        counts = (0, engine.version, held, engine.slots, len(engine.running), 0, 0)
        outbox = {"outbox_bytes": self.outbox, "outbox_limit": 1 << 30}
        said = EngineSignal(engine.name, "b", *counts, site=self.site_of(engine.name), **outbox)
        self.observe(SignalSeen(engine.name, said))

    @property
    def sent_there(self) -> int:
        return sum(
            isinstance(item, Generate)
            for action in self.sent
            if isinstance(action, SendToEngine) and action.engine == THERE
            for item in action.items
        )


@pytest.fixture
def world() -> Backlog:
    found = Backlog(job_config(**JOB), length=lambda work: 100)
    found.begin()
    return found


def test_a_site_whose_outbox_fills_is_sent_nothing_and_is_sent_work_again_when_it_drains(
    world: Backlog,
) -> None:
    assert world.sent_there > 0
    world.outbox = 600 << 20
    world.signal(world.engines[THERE])
    assert world.metrics[-1].sites_held == ("east",)
    before, version = world.sent_there, world.planner.state.version
    while world.planner.state.version < version + 2:
        assert world.step()
    assert world.sent_there == before
    world.outbox, world.now = 0, world.now + 2 * SAID_SECONDS
    world.signal(world.engines[THERE])
    assert world.metrics[-1].sites_held == ()
    while world.sent_there == before:
        assert world.step()
    world.run()
    assert world.finished == "Succeeded"


def test_a_job_that_has_engines_at_a_full_site_only_goes_on_when_that_drains() -> None:
    config = job_config(**{**JOB, "rollout": {"pools": [{"name": "b", "site": "east"}]}})
    world = Backlog(config, engines=1)
    world.pools = {HERE: "b"}
    world.outbox = 1 << 30
    world.begin()
    world.run()
    assert not world.finished
    world.outbox, world.now = 0, world.now + 2 * SAID_SECONDS
    world.signal(world.engines[HERE])
    world.run()
    assert world.finished == "Succeeded"


@pytest.mark.parametrize(("latency", "moves"), [(0.06, True), (60.0, False)])
def test_a_straggler_of_a_site_moves_if_that_is_worth_the_transfer_of_its_tokens(
    latency: float, moves: bool
) -> None:
    job = Job(rollout=SITES)
    job.planner.context.transfers.links = {
        "east": SiteLinkSpec(bits_per_second=10**8, latency_seconds=latency)
    }
    job.lose("slow.x")
    job.see(SiteHeartbeat("east"))
    at_site(job, "slow.y", profile=SLOW)
    job.see(*(ProgressFound(f"g0.{n}", 2, None) for n in range(4)))
    at_site(job, "slow.y", profile=SLOW, longest=(("g0.0", 2, 2560),))
    for sibling in job.planner.state.siblings():
        sibling.deaths = 0  # what outlived an engine does not move
        job.planner.state._update(sibling)
    faster = EngineProfile(0.06, 0.0, 0.0, steps=9)  # by less than twice
    job.engine("fast.x", profile=faster)
    job.engine("fast.x", profile=faster)
    assert bool(job.released) is moves
