"""Losses at a site wait for what the site had stored: payloads, and progress, that are behind a backlog of the link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_migration import RecordedPlanner, stored
from test_sites import HERE, JOB, POOLS, THERE, TwoSites
from world import job_config

from rljob_core.actions import (
    EngineDrained,
    FindMark,
    FindProgress,
    MarkFound,
    OwnHeartbeat,
    ProgressFound,
    SendMark,
    SendToEngine,
    SignalSeen,
    SiteHeartbeat,
    SiteMarkSeen,
    SpecChanged,
)
from rljob_core.messages import EngineDied, EngineGone, EngineSignal, Generate
from rljob_core.planner.liveness import LEASE_HEARTBEATS
from rljob_core.planner.site_links import (
    AWAY_HEARTBEATS,
    GRACE_HEARTBEATS,
    MARK_HEARTBEATS,
    MOST_SITES,
)
from rljob_core.planner.site_marks import PROGRESS_HEARTBEATS
from rljob_core.records import Dispatched, Generated, SiblingReset


@pytest.fixture
def world() -> TwoSites:
    """Both engines have work; of what the site has, one payload is stored there and waits behind a backlog."""
    world = TwoSites()
    world.begin()
    world.behind = []
    world.complete(world.engines[THERE], generate(world.work_there()[0]))
    return world


def generate(trajectory: str) -> Generate:
    return Generate(trajectory, 1, 0, 0, "sampled", 0)


def stored_there(world: TwoSites) -> str:
    return world.work_there()[0]


def beat(world: TwoSites, times: int = 1) -> None:
    """Heartbeats come back, own ones and by way of the site; the engine at the site has ended."""
    for _ in range(times):
        world.observe(OwnHeartbeat())
        world.signal(world.engines[HERE])
        world.observe(SiteHeartbeat("east"))


def dies(world: TwoSites) -> None:
    world.observe(EngineDied(THERE, 139, "it died"))


def is_replaced(world: TwoSites) -> None:
    world.pools["e1.y"] = "b"
    signal = EngineSignal("e1.y", "b", 0, 0, 0, 16, 0, 0, 0, started=1.0, site="east")
    world.observe(SignalSeen("e1.y", signal))


def is_silent(world: TwoSites) -> None:
    beat(world, LEASE_HEARTBEATS + 1)


def is_removed(world: TwoSites) -> None:
    world.observe(SignalSeen(THERE, None))


@pytest.mark.parametrize("ends", [dies, is_replaced, is_silent, is_removed])
def test_what_a_site_had_stored_when_its_engine_died_counts(
    world: TwoSites, ends: Callable[[TwoSites], None]
) -> None:
    first, *others = world.work_there()
    del world.engines[THERE]
    ends(world)
    world.settle()
    assert not list(world.records(SiblingReset))  # the event is here, and the payload is not
    world.catch_up()
    assert [(r.trajectory, r.attempt) for r in world.records(Generated) if r.trajectory == first] == [
        (first, 1)
    ]
    assert {r.trajectory for r in world.records(SiblingReset)} == set(others)
    assert all(r.died for r in world.records(SiblingReset))
    assert not world.planner.context.sites.losses


@pytest.mark.parametrize("is_heard", [False, True])
def test_what_a_drained_engine_had_stored_counts_though_it_gave_up_saying_so(
    world: TwoSites, is_heard: bool
) -> None:
    first, *others = world.work_there()
    del world.engines[THERE]
    world.observe(EngineGone(THERE))
    if is_heard:
        assert world.behind is not None
        world.behind.append(lambda: world.observe(EngineDrained(next(world._sequences), THERE)))
    else:
        is_silent(world)
    world.settle()
    assert not list(world.records(SiblingReset))
    world.catch_up()
    resets = {r.trajectory: (r.reason, r.died) for r in world.records(SiblingReset)}
    assert resets == dict.fromkeys(others, ("Drained", False))
    assert world.planner.state.sibling(first).payload is not None


def test_what_was_reported_of_a_death_is_recorded_however_late_it_counts(world: TwoSites) -> None:
    del world.engines[THERE]
    dies(world)
    is_silent(world)
    world.catch_up()
    details = {r.detail for r in world.records(SiblingReset)}
    assert len(details) == 1
    assert "it died" in details.pop()


def test_an_engine_that_signals_again_has_not_died(world: TwoSites) -> None:
    held = world.work_there()
    is_removed(world)
    assert THERE not in world.planner.context.liveness.engines
    world.signal(world.engines[THERE])
    world.catch_up()
    assert not list(world.records(SiblingReset))
    assert world.work_there() == held[1:]


def test_work_goes_to_no_engine_that_has_died(world: TwoSites) -> None:
    before = len(world.sent)
    dies(world)
    beat(world, 5)
    assert not [a for a in world.sent[before:] if isinstance(a, SendToEngine)]


def test_what_the_step_waits_for_is_given_to_others_if_the_site_goes_away_meanwhile(world: TwoSites) -> None:
    dies(world)
    current = [
        t for t in world.work_there() if world.planner.state.buffers.buffer_of(t.split(".")[0]).step == 0
    ]
    world.cut = True
    world.beat(AWAY_HEARTBEATS)
    assert set(world.resets("SiteAway")) == set(current)
    assert world.work_there()


def marks(world: TwoSites) -> list[int]:
    return [a.number for a in world.marks_sent]


class Counted(TwoSites):
    """Notes the marks that are sent, and has them come back only when a test says so."""

    def __init__(self, **options: Any) -> None:
        self.marks_sent: list[SendMark] = []
        super().__init__(**options)

    def mark(self, mark: SendMark) -> None:
        self.marks_sent.append(mark)


@pytest.fixture
def counted() -> Counted:
    world = Counted()
    world.begin()
    del world.engines[THERE]
    return world


def test_a_mark_that_does_not_come_back_is_followed_by_another(counted: Counted) -> None:
    dies(counted)
    counted.settle()
    assert marks(counted) == [1]
    beat(counted, MARK_HEARTBEATS - 1)
    counted.settle()
    assert marks(counted) == [1]
    beat(counted)
    counted.settle()
    assert marks(counted) == [1, 2]
    counted.observe(SiteMarkSeen(next(counted._sequences), "east", 2))
    assert not counted.work_there()


def test_one_mark_is_on_its_way_at_a_time_and_another_loss_waits_for_the_next() -> None:
    world = Counted(engines=3)
    world.pools["e2.x"] = "b"
    world.begin()
    at_work = world.planner.state.generating
    dies(world)
    world.settle()
    world.observe(EngineDied("e2.x", 139, "it died, too"))
    world.settle()
    assert marks(world) == [1]
    world.observe(SiteMarkSeen(next(world._sequences), "east", 1))
    world.settle()
    assert THERE not in at_work
    assert "e2.x" in at_work
    assert marks(world) == [1]  # its message among the progress is still on its way
    world.observe(MarkFound("east", 1))
    world.settle()
    assert marks(world) == [1, 2]
    world.observe(SiteMarkSeen(next(world._sequences), "east", 1))
    assert "e2.x" in at_work
    world.observe(SiteMarkSeen(next(world._sequences), "east", 2))
    assert "e2.x" not in at_work


def test_a_site_whose_marks_never_come_back_costs_time_only(counted: Counted) -> None:
    dies(counted)
    beat(counted, GRACE_HEARTBEATS - 1)
    assert counted.work_there()
    beat(counted)
    assert not counted.work_there()
    assert all(r.died for r in counted.records(SiblingReset))
    counted.settle()
    assert len(marks(counted)) <= GRACE_HEARTBEATS // MARK_HEARTBEATS + 1


def test_marks_of_other_coordinators_and_marks_that_were_not_sent_say_nothing(counted: Counted) -> None:
    dies(counted)
    for site, number in (("east", 0), ("east", 7), ("west", 1)):  # it is still to be sent
        counted.planner.context.sites.links["east"].marks.sent = 0
        sequence = next(counted._sequences)
        counted.observe(SiteMarkSeen(sequence, site, number))
        assert counted.work_there()
        assert sequence in counted.deleted


def test_a_mark_is_sent_again_as_soon_as_the_site_is_reached_again(counted: Counted) -> None:
    dies(counted)
    counted.settle()
    for _ in range(AWAY_HEARTBEATS):
        counted.observe(OwnHeartbeat())
    counted.observe(SiteHeartbeat("east"))
    counted.settle()
    assert marks(counted) == [1, 2]


def test_a_job_without_sites_sends_no_marks() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    job.engine("e1.x")
    job.lose("e0.x")
    assert not [a for a in job.actions if isinstance(a, SendMark | FindMark)]
    assert [a for a in job.actions if isinstance(a, FindProgress)]


# ---- progress


def interrupted() -> RecordedPlanner:
    """What an engine at a site was generating when it drained; its progress may be behind its last word."""
    job = RecordedPlanner(rollout=POOLS)
    job.see(SiteHeartbeat("east"))
    job.see(SignalSeen(THERE, EngineSignal(THERE, "b", 0, 0, 0, 8, 0, 0, 0, site="east")))
    job.engine("e0.x")
    assert job.last(Dispatched).engine == THERE
    job.see(EngineGone(THERE))
    job.see(EngineDrained(99, THERE))
    assert job.last(SiblingReset).carries
    return job


def looked_up(job: RecordedPlanner) -> list[str]:
    return [t for a in job.actions if isinstance(a, FindProgress) for t in a.trajectories]


def test_progress_of_a_drained_engine_is_looked_up_once_it_is_here() -> None:
    job = interrupted()
    assert not looked_up(job)
    assert job.last(SendMark) == SendMark("east", 1)
    assert job.sent().attempt == 1
    job.see(OwnHeartbeat())
    assert job.last(FindMark) == FindMark("east")
    job.see(MarkFound("east", 0))
    assert not looked_up(job)
    job.actions.clear()
    job.see(SiteMarkSeen(100, "east", 1))
    assert job.last(FindMark) == FindMark("east")
    job.see(MarkFound("east", 1))
    assert looked_up(job) == ["g0.0", "g1.0"]
    job.see(ProgressFound("g0.0", 2, stored()))
    assert job.sent().inherited is not None


def test_progress_is_looked_up_at_once_when_its_site_goes_away() -> None:
    job = interrupted()
    for _ in range(AWAY_HEARTBEATS - 1):
        job.see(OwnHeartbeat())
    assert not looked_up(job)
    job.see(OwnHeartbeat())
    assert looked_up(job) == ["g0.0", "g1.0"]


def test_progress_is_waited_for_only_so_long() -> None:
    job = interrupted()
    for _ in range(PROGRESS_HEARTBEATS - 1):
        job.see(OwnHeartbeat(), SiteHeartbeat("east"))
    assert not looked_up(job)
    job.see(OwnHeartbeat(), SiteHeartbeat("east"))
    assert looked_up(job) == ["g0.0", "g1.0"]


# ---- beats


def test_beats_that_come_at_once_count_as_one(world: TwoSites) -> None:
    for _ in range(3 * LEASE_HEARTBEATS):  # a stall of one direction has ended
        world.observe(SiteHeartbeat("east"))
    assert THERE in world.planner.context.liveness.engines


def test_a_beat_that_is_as_old_as_a_site_may_be_silent_says_nothing(world: TwoSites) -> None:
    link = world.planner.context.sites.links["east"]
    for _ in range(AWAY_HEARTBEATS):
        world.observe(OwnHeartbeat())
    world.observe(SiteHeartbeat("east", AWAY_HEARTBEATS))
    assert link.away
    world.observe(SiteHeartbeat("east", AWAY_HEARTBEATS - 1))
    assert not link.away


# ---- where engines are


def without_the_pool(world: TwoSites) -> None:
    """The pool at the site is removed, and the coordinator replaced."""
    world.config = job_config(**JOB | {"rollout": {"pools": [{"name": "a"}]}})
    world.restart_coordinator("c2")


def said(world: TwoSites, engine: str, site: str) -> None:
    world.observe(SignalSeen(engine, EngineSignal(engine, "b", 0, 0, 4, 16, 4, 0, 0, site=site)))


def test_a_site_is_heard_whose_pool_was_removed_for_what_is_generated_there() -> None:
    world = TwoSites()
    world.begin()
    del world.engines[THERE]  # it does not signal, or not yet
    without_the_pool(world)
    assert set(world.planner.context.sites.links) == {"east"}


def test_an_engine_of_a_removed_pool_is_at_its_site_after_the_coordinator_was_replaced() -> None:
    world = TwoSites()
    world.begin()
    held = world.work_there()
    without_the_pool(world)
    assert set(world.planner.context.sites.links) == {"east"}  # by what it is generating
    said(world, THERE, "east")
    world.cut = True
    world.beat(LEASE_HEARTBEATS + 5)
    assert not world.resets("EngineLost")
    assert set(world.work_there()) <= set(held)


def test_an_engine_of_a_removed_pool_that_has_nothing_is_at_the_site_that_it_names() -> None:
    world = TwoSites(job_config(**JOB | {"rollout": {"pools": [{"name": "a"}]}}), engines=1)
    world.start()
    said(world, THERE, "east")
    sites = world.planner.context.sites
    assert world.planner.context.site_of(THERE) == "east"
    assert not world.work_there()
    world.observe(SiteHeartbeat("east"))
    assert sites.reaches("east")


def test_a_site_is_forgotten_once_no_pool_and_no_engine_is_there() -> None:
    world = TwoSites()
    world.begin()
    sites = world.planner.context.sites
    world.observe(SpecChanged(job_config(**JOB | {"rollout": {"pools": [{"name": "a"}]}}).spec))
    world.observe(OwnHeartbeat())
    assert "east" in sites.links
    del world.engines[THERE]
    world.observe(EngineDied(THERE, 0, ""))
    world.settle()
    assert "east" not in {held.site for held in world.planner.context.lookups.held}
    world.observe(OwnHeartbeat())
    assert not sites.links


def test_what_is_to_be_cancelled_at_a_site_that_is_away_keeps_it_known_for_its_grace() -> None:
    world = TwoSites()
    world.begin()
    world.observe(SpecChanged(job_config(**JOB | {"rollout": {"pools": [{"name": "a"}]}}).spec))
    world.cut_until_away()
    sites = world.planner.context.sites
    world.beat(GRACE_HEARTBEATS)
    world.signal(world.engines[HERE])
    assert "east" not in sites.links
    assert not sites.cancelled


def test_an_engine_can_claim_to_be_at_so_many_sites_only() -> None:
    job = RecordedPlanner(rollout=POOLS)
    for number in range(2 * MOST_SITES):
        signal = EngineSignal(f"e{number}.x", "b", 0, 0, 0, 8, 0, 0, 0, site=f"site-{number}")
        job.see(SignalSeen(signal.engine, signal))
    sites, engines = job.planner.context.sites, job.planner.context.liveness.engines
    assert len(sites.links) == MOST_SITES
    assert len(engines) == MOST_SITES - 1
    assert not [a for a in job.actions if isinstance(a, SendToEngine)]
    for _ in range(AWAY_HEARTBEATS + GRACE_HEARTBEATS + 1):
        job.see(OwnHeartbeat())
    assert set(sites.links) == {"east"}
    assert not engines
