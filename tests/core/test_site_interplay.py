"""How what is done about sites interacts: losses that wait, sites that are forgotten, backlogs, other coordinators."""

from __future__ import annotations

from test_migration import RecordedPlanner
from test_site_marks import Counted, dies, generate, is_silent, marks
from test_sites import HERE, JOB, POOLS, THERE, TwoSites
from world import job_config

from rljob_core.actions import (
    EngineDrained,
    FindProgress,
    MarkFound,
    OwnHeartbeat,
    ProgressFound,
    RetireEngine,
    SendMark,
    SendToEngine,
    SignalSeen,
    SiteHeartbeat,
    SiteMarkSeen,
    SitesLost,
    SpecChanged,
)
from rljob_core.messages import EngineDied, EngineGone, EngineSignal
from rljob_core.planner.site_links import AWAY_HEARTBEATS
from rljob_core.records import SiblingReset


def at_site(name: str, held: int = 0, slots: int = 8, **said: int) -> SignalSeen:
    return SignalSeen(name, EngineSignal(name, "b", 0, 0, held, slots, 0, 0, 0, site="east", **said))


def without_sites(job: RecordedPlanner) -> SpecChanged:
    rollout = job.config.spec.rollout.model_copy(update={"pools": job.config.spec.rollout.pools[:1]})
    return SpecChanged(job.config.spec.model_copy(update={"rollout": rollout}))


def test_the_next_coordinator_does_not_take_an_engine_for_alive_whose_death_was_reported() -> None:
    world = TwoSites(engines=2, slots=4)
    world.begin()
    world.behind = []  # its loss waits for the mark
    dies(world)
    assert [a for a in world.sent if isinstance(a, RetireEngine)] == [RetireEngine(THERE, "east")]


def test_an_engine_that_drained_and_crashes_at_its_exit_quarantines_nothing() -> None:
    world = TwoSites()
    world.begin()
    world.behind = []
    del world.engines[THERE]
    world.observe(EngineGone(THERE))
    is_silent(world)  # it could not store its last word
    world.observe(EngineDied(THERE, 139, "a fault at exit"))
    world.settle()
    world.catch_up()
    assert {(r.reason, r.died) for r in world.records(SiblingReset)} == {("Drained", False)}


def test_marks_of_before_a_site_was_forgotten_say_nothing_of_the_time_after() -> None:
    job = RecordedPlanner(rollout=POOLS)
    job.see(SiteHeartbeat("east"))
    for seen in (at_site(THERE), EngineGone(THERE), EngineDrained(99, THERE)):
        job.see(seen)
    assert job.last(SendMark) == SendMark("east", 1)
    job.see(SiteMarkSeen(100, "east", 1), MarkFound("east", 1))
    for trajectory in ("g0.0", "g1.0"):
        job.see(ProgressFound(trajectory, 2, None))
    with_sites = SpecChanged(job.config.spec)
    job.see(without_sites(job), OwnHeartbeat())
    assert not job.planner.context.sites.links
    for seen in (with_sites, SiteHeartbeat("east"), at_site("e2.x")):
        job.see(seen)
    assert "e2.x" in job.planner.state.generating
    job.actions.clear()
    for seen in (EngineGone("e2.x"), EngineDrained(199, "e2.x")):
        job.see(seen)
    assert job.last(SendMark) is not None
    job.see(OwnHeartbeat(), MarkFound("east", 1))  # which has been there since
    assert not [a for a in job.actions if isinstance(a, FindProgress)]


def test_a_forgotten_site_is_not_held_back() -> None:
    job = RecordedPlanner(rollout=POOLS)
    job.see(SiteHeartbeat("east"), at_site(THERE, outbox_bytes=90, outbox_limit=100))
    job.see(without_sites(job))
    job.lose(THERE)
    job.see(OwnHeartbeat())
    assert not job.planner.context.sites.links
    assert not job.planner.context.transfers.held_back


def test_a_second_loss_does_not_wait_for_a_mark_that_is_back_where_nothing_resumes() -> None:
    world = Counted(config=job_config(**JOB | {"rollout": POOLS | {"progressTokens": 0}}), engines=3)
    world.pools["e2.x"] = "b"
    world.begin()
    dies(world)
    world.settle()
    world.marks["east"] = 1  # among the progress
    world.observe(SiteMarkSeen(next(world._sequences), "east", 1))
    world.settle()
    world.observe(EngineDied("e2.x", 139, "it died, too"))
    world.settle()
    assert marks(world) == [1, 2]


def test_what_is_behind_a_backlog_is_not_sent_again_each_few_beats() -> None:
    world = TwoSites()
    world.begin()
    world.behind = []
    held = world.work_there()
    for trajectory in held:
        world.complete(world.engines[THERE], generate(trajectory))
    before = len(world.sent)
    for _ in range(60):
        world.observe(OwnHeartbeat())
        world.signal(world.engines[HERE])
        world.observe(at_site(THERE, slots=16, outbox_bytes=10, outbox_limit=100))
        world.observe(SiteHeartbeat("east"))
    sent = [a for a in world.sent[before:] if isinstance(a, SendToEngine) and a.engine == THERE]
    assert sum(len(a.items) for a in sent) <= len(held)


def test_what_nobody_else_could_generate_stays_where_it_is() -> None:
    world = TwoSites()
    del world.engines[HERE]
    world.begin()
    held = world.work_there()
    world.cut = True
    for _ in range(AWAY_HEARTBEATS):
        world.observe(OwnHeartbeat())
    world.observe(SitesLost(("east",)))
    assert world.work_there() == held
    assert not world.resets("SiteAway")


def test_an_engine_of_a_site_that_is_away_takes_no_blame_from_others() -> None:
    world = TwoSites(engines=3)
    world.begin()
    for number in range(9 + AWAY_HEARTBEATS):
        world.observe(OwnHeartbeat())
        world.signal(world.engines[HERE])
        world.signal(world.engines["e2.x"])
        if number < 9:
            world.observe(SiteHeartbeat("east"))
    assert world.planner.context.liveness.ended_alone("e2.x")
