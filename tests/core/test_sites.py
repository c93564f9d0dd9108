"""Engines at other sites: what they are sent, what is given to others while their site is away, and how they go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import decompress

import pytest
from test_balancing import FAST, SLOW, Job
from test_migration import RecordedPlanner, stored
from test_quarantine import recalled
from world import SimulatedEngine, World, job_config

from rljob_core.actions import (
    Action,
    Announce,
    OwnHeartbeat,
    ProgressFound,
    PublishMetrics,
    RetireEngine,
    SendMark,
    SendToEngine,
    SignalSeen,
    SiteHeartbeat,
    SitesLost,
    SpecChanged,
)
from rljob_core.job_state.snapshot import dump, load
from rljob_core.messages import (
    AWAITED,
    REJECTED,
    Cancel,
    EngineDied,
    EngineGone,
    EngineProfile,
    EngineSignal,
    Generate,
    TrainerReady,
)
from rljob_core.planner.endings import abort_group, reset_sibling
from rljob_core.planner.heartbeats import REJECTED_HEARTBEATS
from rljob_core.planner.liveness import LEASE_HEARTBEATS
from rljob_core.planner.site_links import AWAY_HEARTBEATS, GRACE_HEARTBEATS
from rljob_core.planner.sites import kept_waiting
from rljob_core.records import Dispatched, GroupAborted, GroupMoved, Record, SiblingReset
from rljob_core.trajectory import group_of

HERE, THERE = "e0.x", "e1.x"
"""An engine at the hub, and one at the site `east`."""
POOLS = {"pools": [{"name": "a"}, {"name": "b", "site": "east"}]}
JOB: dict[str, Any] = {
    "steps": 6,
    "rollout": POOLS,
    "data": {"promptsPerStep": 4, "groupSize": 2},
    "pipeline": {"mode": "BoundedAsync", "maxStaleness": 2, "window": 0},
}


class TwoSites(World):
    """A job with an engine at the hub and one at a site, whose link can be cut: what is sent then arrives later."""

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(
            config if config is not None else job_config(**JOB),
            **{"engines": 2, "slots": 16, "length": lambda work: 10, "reward": lambda t: 0.0, **options},
        )
        self.pools = {THERE: "b"}
        self.cut = False
        self.sent: list[Action] = []
        """All that was sent to engines."""
        self.on_its_way: list[Action] = []
        self.ended: list[tuple[SimulatedEngine, Generate]] = []
        self.metrics: list[Any] = []
        self.behind: list[Callable[[], None]] | None = None
        """While the link is slow, the payloads and marks that wait at the site."""

    def mark(self, mark: SendMark) -> None:
        if self.cut:
            return  # it is lost
        if self.behind is None:
            super().mark(mark)
        else:
            self.behind.append(lambda: World.mark(self, mark))

    def catch_up(self) -> None:
        """What waits at the site arrives, and so on until nothing waits."""
        while self.behind:
            self.behind.pop(0)()
            self.settle()
        self.behind = None

    def settle(self) -> None:
        """Everything happens that takes no time."""
        while self._events and self._events[0][0] <= self.now:
            self.step()

    def is_cut(self, engine: str) -> bool:
        return self.cut and self.pools.get(engine) == "b"

    def act(self, action: Action) -> None:
        if isinstance(action, (SendToEngine, RetireEngine)):
            assert action.site == ("east" if self.pools.get(action.engine) == "b" else ""), action
            self.sent.append(action)
            if self.is_cut(action.engine):
                self.on_its_way.append(action)
                return
        if isinstance(action, PublishMetrics):
            self.metrics.append(action.metrics)
        super().act(action)

    def swap(self, engine: SimulatedEngine) -> None:
        if not self.is_cut(engine.name):
            super().swap(engine)

    def signal(self, engine: SimulatedEngine) -> None:
        if not self.is_cut(engine.name):
            super().signal(engine)

    def complete(self, engine: SimulatedEngine, work: Generate) -> None:
        if self.is_cut(engine.name):
            self.ended.append((engine, work))
        elif self.behind is not None and self.pools.get(engine.name) == "b":
            self.complete_behind(engine, work)
        else:
            super().complete(engine, work)

    def complete_behind(self, engine: SimulatedEngine, work: Generate) -> None:
        """An engine at the site stores a payload, which waits there."""
        key = work.trajectory, work.attempt
        if (span := engine.running.pop(key, None)) is None or engine.name not in self.engines:
            return
        begun = {key: engine.begun[key]}
        stored = SimulatedEngine(engine.name, 0, engine.version, running={key: span}, begun=begun)

        def arrive() -> None:
            self.engines, alive = {**self.engines, engine.name: stored}, self.engines
            World.complete(self, stored, work)
            self.engines = alive

        assert self.behind is not None
        self.behind.append(arrive)

    def take_charge(self, instance: str) -> None:
        super().take_charge(instance)
        self.beat_there()

    def beat_there(self) -> None:
        if not self.cut:
            self.observe(SiteHeartbeat("east"))

    def beat(self, times: int = 1, *, heard: bool = True) -> None:
        for _ in range(times):
            super().beat(heard=heard)
            self.beat_there()

    def heal(self) -> None:
        """What the site has stored arrives, then the beat, and what was sent to it."""
        self.cut = False
        ended, self.ended = self.ended, []
        for engine, work in ended:
            self.complete(engine, work)
        for engine in list(self.engines.values()):
            self.signal(engine)
        actions, self.on_its_way = self.on_its_way, []
        for action in actions:
            World.act(self, action)
        self.observe(SiteHeartbeat("east"))
        for engine in list(self.engines.values()):
            self.swap(engine)

    def site_of(self, engine: str) -> str:
        return "east" if self.pools.get(engine) == "b" else ""

    def start(self) -> None:
        """Both engines are there before anything is dispatched."""
        self.take_charge("c1")
        engines = [] if self.cut else list(self.engines.values())
        for engine in engines:
            engine.version = 0
        self.observe(
            *(
                SignalSeen(
                    e.name,
                    EngineSignal(
                        e.name,
                        self.pools.get(e.name, "a"),
                        *(0, 0, 0, e.slots, 0, 0, 0),
                        site=self.site_of(e.name),
                    ),
                )
                for e in engines
            )
        )
        self.observe(TrainerReady(self.attempt, 0, None))

    def begin(self) -> None:
        """Start, and go on until the trainer has asked for work."""
        self.start()
        while not self.planner.context.trainer_link.accepted:
            assert self.step()

    def cut_until_away(self) -> list[str]:
        """What the site was generating; the trainer waits for the current step, of which nothing is generated."""
        held = self.work_there()
        self.cut = True
        self.beat(AWAY_HEARTBEATS)
        assert self.planner.context.sites.away == ("east",)
        return held

    def report(self) -> None:
        """The trainer says that it waits."""
        self.observe(
            TrainerReady(self.attempt, self.epoch, self.trainer_version, None, self.resumed, len(self.fed))
        )

    def go_on(self, times: int = 200) -> None:
        """Everything that can happen, and a beat, and so on."""
        for _ in range(times):
            self.run()
            if self.finished:
                return
            self.beat()
            self.report()

    def work_there(self) -> list[str]:
        return list(self.planner.state.generating.get(THERE, ()))

    def records(self, kind: type[Record]) -> Iterator[Any]:
        return (r for batch in self.ledger for r in batch.records if isinstance(r, kind))

    def resets(self, reason: str) -> list[str]:
        return [r.trajectory for r in self.records(SiblingReset) if r.reason == reason]


@pytest.fixture
def world() -> TwoSites:
    """Both engines have work of the first steps."""
    world = TwoSites()
    world.begin()
    assert steps_of(world, world.work_there()) == {0, 1, 2}
    return world


def steps_of(world: TwoSites, trajectories: list[str]) -> set[int]:
    return {world.planner.state.buffers.buffer_of(group_of(t)).step for t in trajectories}


def test_what_goes_to_an_engine_names_its_site(world: TwoSites):
    world.go_on()
    assert world.finished == "Succeeded"
    sites = {r.engine: r.site for r in world.records(Dispatched)}
    assert sites == {HERE: "", THERE: "east"}
    assert not list(world.records(SiblingReset))


def test_an_engine_at_a_site_gets_nothing_before_a_beat_has_come_back():
    world = TwoSites()
    world.cut = True
    world.start()
    world.cut = False
    world.signal(world.engines[THERE])
    assert not world.work_there()
    world.beat_there()
    assert world.work_there()


def test_leases_of_engines_at_a_site_count_its_beats(world: TwoSites):
    for _ in range(AWAY_HEARTBEATS - 1):
        world.observe(OwnHeartbeat())
    for _ in range(LEASE_HEARTBEATS):
        world.observe(SiteHeartbeat("east"), OwnHeartbeat())
        world.signal(world.engines[HERE])
    assert world.work_there()
    world.observe(SiteHeartbeat("east"))
    world.settle()
    assert not world.work_there()
    assert all(r.died for r in world.records(SiblingReset))


def test_own_heartbeats_end_no_lease_at_a_site(world: TwoSites):
    world.cut = True
    world.beat(3 * LEASE_HEARTBEATS)
    assert world.work_there()
    assert not world.resets("EngineLost")


def test_a_site_is_away_once_its_beats_have_failed_to_come_back(world: TwoSites):
    sites = world.planner.context.sites
    world.cut = True
    world.beat(AWAY_HEARTBEATS - 1)
    assert not sites.away
    world.heal()
    world.cut = True
    world.beat(AWAY_HEARTBEATS - 1)
    assert not sites.away
    world.beat()
    assert sites.away == ("east",)
    assert world.metrics[-1].sites_away == ("east",)
    world.heal()
    assert not sites.away
    assert world.metrics[-1].sites_away == ()


def test_a_site_that_is_away_gets_nothing(world: TwoSites):
    world.cut_until_away()
    before = len(world.sent)
    world.go_on(40)
    assert {a.engine for a in world.sent[before:]} == {HERE}


def test_an_engine_that_is_away_counts_in_no_load(world: TwoSites):
    load = world.planner.context.liveness.load

    def signal(running: int) -> None:
        profile = EngineProfile(0.01, 0.0, 0.0, 9)
        seen = EngineSignal(THERE, "b", 0, 0, 4, 4, running, 0, 0, profile=profile, context=90, site="east")
        world.observe(SignalSeen(THERE, seen))

    signal(3)
    assert load.context == 90
    world.cut_until_away()
    here = len(world.engines[HERE].running)
    assert (load.running, load.context) == (here, 0)
    signal(2)
    assert (load.running, load.context) == (here, 0)
    world.observe(SiteHeartbeat("east"))
    assert (load.running, load.context) == (here + 2, 90)


def test_only_what_the_step_waits_for_is_given_to_others(world: TwoSites):
    held = world.cut_until_away()
    current = [t for t in held if steps_of(world, [t]) == {0}]
    assert world.resets("SiteAway") == current
    assert world.work_there() == [t for t in held if t not in current]
    reset = next(r for r in world.records(SiblingReset) if r.reason == "SiteAway")
    assert not reset.failure
    assert not reset.died
    world.beat(100)
    assert world.resets("SiteAway") == current


def test_nothing_is_given_to_others_while_the_trainer_has_work():
    world = TwoSites(train_seconds=lambda tokens: 1e9)
    world.begin()
    for sibling in list(world.planner.state.groups["g0"].siblings):
        for engine in world.engines.values():
            work = next((k for k in engine.running if k[0] == sibling.id), None)
            if work is not None:
                world.complete(engine, Generate(*work, 0, 0, "sampled", 0))
    assert world.planner.state.micro_batches
    held = world.cut_until_away()
    assert not world.resets("SiteAway")  # it computes the first micro-batch
    while not world.fed:
        assert world.step()
    world.report()
    assert world.resets("SiteAway") == [t for t in held if steps_of(world, [t]) == {0}]


def test_nothing_is_given_to_others_if_there_are_none(world: TwoSites):
    world.observe(EngineDied(HERE, 1, ""))
    del world.engines[HERE]
    world.cut_until_away()
    world.report()
    assert not world.resets("SiteAway")
    world.heal()
    world.go_on()
    assert world.finished == "Succeeded"


def test_a_job_trains_on_while_a_site_is_away_and_trains_nothing_twice(world: TwoSites):
    world.cut_until_away()
    for _ in range(60):
        world.run()
        world.beat()
        world.report()
    assert world.planner.state.version >= 2
    world.heal()
    world.go_on()
    assert world.finished == "Succeeded"
    consumed = [t for _, t in world.consumed]
    assert len(consumed) == len(set(consumed)) == 48
    assert world.planner.state.counts["consumed"] == 48


def test_what_others_have_is_cancelled_when_the_site_is_reached_again(world: TwoSites):
    held = world.cut_until_away()
    given = world.resets("SiteAway")
    assert not world.on_its_way
    world.heal()
    cancels = [i for a in world.sent if a.engine == THERE for i in a.items if isinstance(i, Cancel)]
    assert [(c.trajectories, c.attempts) for c in cancels] == [(tuple(given), (1,) * len(given))]
    assert {t for t, _ in world.engines[THERE].running} == set(held) - set(given)


def test_what_was_given_to_others_does_not_count_when_it_arrives(world: TwoSites):
    world.cut_until_away()
    (given, *_) = world.resets("SiteAway")
    for key in list(world.engines[THERE].running):
        if key[0] == given:
            world.ended.append((world.engines[THERE], Generate(*key, 0, 0, "sampled", 0)))
    world.heal()
    sibling = world.planner.state.sibling(given)
    assert (sibling.attempt, sibling.payload) == (2, None)
    world.go_on()
    assert world.finished == "Succeeded"


def test_what_was_not_given_to_others_counts_when_it_arrives(world: TwoSites):
    world.cut_until_away()
    (kept, *_) = world.work_there()
    for key in list(world.engines[THERE].running):
        if key[0] == kept:
            world.ended.append((world.engines[THERE], Generate(*key, 0, 0, "sampled", 0)))
    world.heal()
    sibling = world.planner.state.sibling(kept)
    assert (sibling.attempt, sibling.payload is not None) == (1, True)


@pytest.mark.parametrize("first", ["lost", "away"])
def test_everything_of_a_site_that_is_lost_is_given_to_others_at_once(first: str):
    world = TwoSites()
    world.begin()
    if first == "lost":
        world.observe(SitesLost(("east", "unknown")))
        assert world.work_there(), "it is reached: it is not lost"
        held = world.cut_until_away()
    else:
        held = world.cut_until_away()
        assert world.work_there()
        world.observe(SitesLost(("east",)))
    assert not world.work_there()
    assert set(held) <= set(world.resets("SiteAway"))
    assert not any(r.died or r.failure for r in world.records(SiblingReset))


def test_a_site_that_is_no_longer_lost_keeps_what_it_has(world: TwoSites):
    world.observe(SitesLost(("east",)))
    world.observe(SitesLost(()))
    world.cut_until_away()
    assert world.work_there()


def test_what_a_site_has_is_kept_for_as_long_as_its_site_says():
    longer = GRACE_HEARTBEATS + 100
    world = TwoSites(job_config(**JOB).model_copy(update={"grace": {"east": longer, "west": 2 * longer}}))
    world.begin()
    world.cut_until_away()
    kept = world.work_there()
    world.beat(longer - 1)
    assert world.work_there() == kept
    world.beat()
    assert not world.work_there()


def test_after_its_grace_everything_of_a_site_is_given_to_others():
    world = TwoSites()
    world.begin()
    held = world.cut_until_away()
    kept = world.work_there()
    assert kept
    world.beat(GRACE_HEARTBEATS - 1)
    assert world.work_there() == kept
    world.beat()
    assert not world.work_there()
    assert THERE not in world.planner.context.liveness.engines
    assert set(held) <= set(world.resets("SiteAway"))
    assert not any(r.died or r.failure for r in world.records(SiblingReset))
    assert not world.planner.state.survivors
    assert RetireEngine(THERE, "east") in world.sent
    assert not world.planner.context.sites.cancelled  # it is cancelled once the engine signals
    before = len(world.sent)
    world.heal()
    world.signal(world.engines[THERE])
    cancels = [i for a in world.sent[before:] if a.engine == THERE for i in getattr(a, "items", ())]
    cancelled = {t for c in cancels if isinstance(c, Cancel) for t in c.trajectories}
    assert cancelled >= set(held)


def test_a_new_coordinator_waits_for_beats_before_it_sends_and_before_leases_end(world: TwoSites):
    held = world.work_there()
    world.cut = True
    before = len(world.sent)
    world.restart_coordinator("c2")
    world.beat(AWAY_HEARTBEATS - 1)
    assert not world.planner.context.sites.away
    assert {a.engine for a in world.sent[before:]} == {HERE}
    assert set(world.work_there()) == set(held)  # known from the ledger alone
    assert world.planner.context.site_of(THERE) == "east"
    world.beat(2 * LEASE_HEARTBEATS)
    assert world.planner.context.sites.away == ("east",)
    assert not world.resets("EngineLost")
    before = len(world.sent)
    world.heal()
    resent = [
        i.trajectory
        for a in world.sent[before:]
        if a.engine == THERE
        for i in a.items
        if isinstance(i, Generate)
    ]
    assert set(resent) >= set(world.work_there())
    world.go_on()
    assert world.finished == "Succeeded"


def test_a_death_that_is_reported_late_counts_for_what_the_engine_has_still(world: TwoSites):
    world.cut_until_away()
    kept = world.work_there()
    assert kept
    assert world.planner.context.sites.cancelled
    del world.engines[THERE]
    world.ended = []
    world.heal()
    world.observe(EngineDied(THERE, 139, "it died"))
    world.settle()
    assert set(world.resets("EngineLost")) == set(kept)
    assert world.planner.context.sites.cancelled == {}
    late = EngineSignal(THERE, "b", 0, 0, 1, 4, 1, 0, 0, site="east")
    world.observe(SignalSeen(THERE, late))
    assert THERE not in world.planner.context.liveness.engines
    world.go_on()
    assert world.finished == "Succeeded"


def test_held_out_answers_of_a_site_are_given_to_others_when_nothing_else_is_waited_for():
    config = job_config(steps=2, rollout=POOLS, evaluation={"everySteps": 1, "samples": 3})
    world = TwoSites(config)
    world.start()
    run = world.planner.context.evaluation
    assert THERE in run.engines.values()
    world.cut_until_away()
    assert THERE in run.engines.values()  # others have answers still
    world.go_on(60)
    assert world.finished == "Succeeded"
    assert world.cut


def test_engines_that_are_away_do_not_end_the_job_by_rejecting_weights(world: TwoSites):
    while world.planner.state.version < 1:
        world.run(1)
    for engine in world.engines.values():
        engine.version, engine.stuck = 0, REJECTED
        world.signal(engine)
    world.cut_until_away()
    for _ in range(2 * REJECTED_HEARTBEATS):
        world.observe(OwnHeartbeat())
        world.signal(world.engines[HERE])
    assert world.planner.state.finished is None


class Awaiting(TwoSites):
    """The site does not get the weights of versions after the first."""

    def act(self, action: Action) -> None:
        if isinstance(action, Announce):
            for engine in self.engines.values():
                if self.pools.get(engine.name) == "b" and action.version > 0:
                    engine.stuck = AWAITED
        super().act(action)

    def swap(self, engine: SimulatedEngine) -> None:
        if not engine.stuck:
            super().swap(engine)


def test_weights_that_a_site_awaits_end_no_job_and_are_taken_from_it_only_as_the_step_needs_it():
    world = Awaiting(job_config(steps=6, rollout=POOLS))
    world.start()
    world.go_on()
    assert world.finished == "Succeeded"
    assert not world.resets("WeightsRejected")
    assert set(world.resets("WeightsAwaited")) <= {t for _, t in world.consumed}


def test_an_engine_that_awaits_weights_is_not_sent_its_work_again_and_again():
    world = Awaiting(job_config(steps=6, rollout=POOLS), train_seconds=lambda tokens: 0.0)
    world.start()
    while world.planner.state.version < 1:
        assert world.step()
    world.run(20)
    world.signal(world.engines[THERE])
    view = world.planner.context.liveness.engines[THERE]
    view.held = view.assigned
    before = len(world.sent)
    for _ in range(30):
        world.observe(OwnHeartbeat(), SiteHeartbeat("east"))
    assert not [
        a
        for a in world.sent[before:]
        if a.engine == THERE and isinstance(a, SendToEngine) and len(a.items) > 1
    ]


def test_what_engines_that_are_away_hold_does_not_narrow_the_window():
    world = TwoSites(job_config(**JOB | {"pipeline": {"maxStaleness": 2, "window": 0.25}}))
    world.begin()
    context = world.planner.context
    begun = context.state.started
    assert begun < 12
    world.cut_until_away()
    assert context.held_away == len(world.work_there())
    assert context.held_away
    assert context.state.started == begun + context.held_away


def test_a_pool_that_is_added_while_the_job_runs_is_at_its_site():
    world = TwoSites(job_config(), engines=1)
    world.start()
    world.engines[THERE] = SimulatedEngine(THERE, 4, version=0)
    spec = job_config(rollout=POOLS).spec
    world.observe(SpecChanged(spec))
    world.signal(world.engines[THERE])
    assert not world.work_there()
    world.beat_there()
    world.signal(world.engines[THERE])
    world.go_on()
    assert world.finished == "Succeeded"
    assert {r.site for r in world.records(Dispatched) if r.engine == THERE} == {"east"}


def at_site(job: RecordedPlanner, name: str, **signal: Any) -> None:
    """An engine of the pool at the site signals."""
    job.see(SignalSeen(name, EngineSignal(name, "b", 0, 0, 0, 8, 0, 0, 0, **{"site": "east", **signal})))


def test_progress_is_resumed_at_the_hub_alone_as_it_comes_to_no_site():
    job = RecordedPlanner(rollout=POOLS)
    job.see(SiteHeartbeat("east"))
    job.engine("e0.x")
    at_site(job, THERE)
    job.lose("e0.x")
    job.see(ProgressFound("g0.0", 2, stored()))
    assert (job.sent().attempt, job.sent().inherited) == (2, None)
    assert job.last(Dispatched).engine == THERE

    job = RecordedPlanner(rollout=POOLS)
    job.see(SiteHeartbeat("east"))
    job.engine("e0.x")
    at_site(job, THERE)
    job.engine("e2.x")
    job.lose("e0.x")
    job.see(ProgressFound("g0.0", 2, stored()))
    assert job.sent().inherited is not None
    assert job.last(Dispatched).engine == "e2.x"


def test_nothing_moves_to_a_site_where_it_would_start_over():
    job = Job(rollout=POOLS)
    job.see(SiteHeartbeat("east"))
    at_site(job, "fast.x", profile=FAST)
    job.runs(2560)
    job.runs(2560)
    assert not job.released
    job.engine("faster.x", profile=FAST)
    job.runs(2560)
    assert job.released


def test_an_engine_that_is_away_is_not_asked_to_release_anything():
    for away in (False, True):
        job = Job(rollout=POOLS)
        job.lose("slow.x")
        job.see(SiteHeartbeat("east"))
        at_site(job, "slow.y", profile=SLOW)
        job.see(*(ProgressFound(f"g0.{n}", 2, None) for n in range(4)))
        at_site(job, "slow.y", profile=SLOW, longest=(("g0.0", 2, 2560),))
        for sibling in job.planner.state.siblings():
            sibling.deaths = 0  # what outlived an engine does not move
            job.planner.state._update(sibling)
        for _ in range(AWAY_HEARTBEATS if away else 0):
            job.planner.context.trainer_link.accepted = False  # nobody waits for the step
            job.see(OwnHeartbeat())
        job.engine("fast.x", profile=FAST)
        job.engine("fast.x", profile=FAST)
        assert bool(job.released) is not away


@pytest.mark.parametrize("away", [False, True])
def test_siblings_are_not_recalled_from_an_engine_that_is_away(away: bool):
    job = RecordedPlanner(data={"promptsPerStep": 2, "groupSize": 2}, rollout={**POOLS, "progressTokens": 0})
    job.see(SiteHeartbeat("east"))
    signals = (
        EngineSignal(name, pool, 0, 0, 0, 8, 0, 0, 0, site=site)
        for name, pool, site in ((HERE, "a", ""), (THERE, "b", "east"))
    )
    job.see(*(SignalSeen(signal.engine, signal) for signal in signals))
    for _ in range(AWAY_HEARTBEATS if away else 0):
        job.see(OwnHeartbeat())
    job.see(EngineDied(HERE, 139, ""))
    assert len(recalled(job)) == (0 if away else 1)


def test_what_is_quarantined_is_tried_where_it_can_be_sent():
    given_up = {"g1", "g6", "g9", "g20"}
    world = TwoSites(job_config(**JOB), poison=lambda work: group_of(work.trajectory) in given_up)
    world.cut = True
    world.start()
    world.observe(SignalSeen(THERE, EngineSignal(THERE, "b", 0, 0, 0, 16, 0, 0, 0, site="east")))
    world.engines[HERE].version = 0
    world.observe(SignalSeen(HERE, EngineSignal(HERE, "a", 0, 0, 0, 16, 0, 0, 0)))
    world.go_on()
    assert world.finished == "Succeeded"
    assert {a.group for a in world.records(GroupAborted)} == given_up
    assert {r.engine.partition(".")[0] for r in world.records(Dispatched)} == {"e0"}


def test_a_group_that_spans_sites_is_cancelled_at_each(world: TwoSites):
    group = group_of(world.work_there()[0])
    assert {s.engine for s in world.planner.state.groups[group].siblings} == {HERE, THERE}
    abort_group(world.planner.context, group, "UniformGroup")
    world.perform(world.planner.context.flush_decision())
    assert {a.engine for a in world.sent if any(isinstance(i, Cancel) for i in a.items)} == {HERE, THERE}


def test_beats_of_sites_that_the_job_does_not_have_say_nothing(world: TwoSites):
    world.observe(SiteHeartbeat("west"))
    assert set(world.planner.context.sites.links) == {"east"}


def test_the_site_of_work_outlives_the_coordinator(world: TwoSites):
    state = load(dump(world.planner.state))
    assert {s.site for s in state.siblings() if s.engine == THERE} == {"east"}
    assert b'"site"' not in decompress(dump(RecordedPlanner().planner.state))


def test_what_is_ready_takes_the_places_of_what_a_site_keeps_waiting(world: TwoSites):
    state = world.planner.state
    world.planner.context.trainer_link.accepted = False  # nothing is given to others
    assert [s.engine for s in state.groups["g4"].siblings] == [HERE, THERE]
    for trajectory in ("g1.1", "g2.1", "g3.1", "g4.1"):
        world.complete(world.engines[THERE], Generate(trajectory, 1, 0, 0, "sampled", 0))
    world.cut_until_away()  # of the current step, g0 alone waits for the site
    world.complete(world.engines[HERE], Generate("g4.0", 1, 0, 0, "sampled", 0))
    assert [(m.group, m.displaced) for m in world.records(GroupMoved)] == [("g4", "g0")]


def test_groups_that_a_site_keeps_waiting_are_known_only_while_it_is_away(world: TwoSites):
    current = {group_of(t) for t in world.work_there() if steps_of(world, [t]) == {0}}
    assert not kept_waiting(world.planner.context)
    world.planner.context.trainer_link.accepted = False  # nothing is given to others
    world.cut_until_away()
    assert kept_waiting(world.planner.context) == current


def test_what_is_quarantined_that_is_tried_at_a_site_that_is_away_keeps_no_other_from_its_trial(
    world: TwoSites,
):
    context = world.planner.context
    state = context.state
    first, last = (
        next(g for g in state.groups if state.buffers.buffer_of(g).step == step) for step in (0, 2)
    )
    for group in (first, last):
        for sibling in state.groups[group].siblings:
            for _ in range(3):
                context.liveness.free_slot(sibling.engine)
                reset_sibling(context, sibling, "EngineLost", failure=False, died=True)
    tried = state.groups[last].siblings
    ids, attempts = tuple(s.id for s in tried), tuple(s.attempt for s in tried)
    context.emit(Dispatched(ids, attempts, THERE, 0, {}, "east"))
    world.perform(context.flush_decision())
    assert {s.id for s in state.groups[first].siblings} <= set(state.quarantined)
    world.cut = True
    for _ in range(4 * AWAY_HEARTBEATS):
        world.run()
        world.beat()
        world.report()
    assert state.version > 0


def test_held_out_answers_are_taken_from_an_engine_that_awaits_weights():
    evaluation = {"everySteps": 1, "samples": 3}
    world = Awaiting(job_config(steps=2, rollout=POOLS, evaluation=evaluation))
    world.start()
    world.go_on(300)
    assert world.finished == "Succeeded"


def test_an_engine_that_has_drained_behind_a_backlog_has_not_died(world: TwoSites):
    held = world.work_there()
    world.observe(
        SignalSeen(
            THERE, EngineSignal(THERE, "b", world.epoch, 0, 0, 16, 0, 0, 0, draining=True, site="east")
        )
    )
    world.observe(EngineGone(THERE))
    world.engines.pop(THERE)
    for _ in range(AWAY_HEARTBEATS + 5):
        world.observe(OwnHeartbeat(), SiteHeartbeat("east"))
        world.signal(world.engines[HERE])
    world.settle()
    resets = {r.trajectory: (r.reason, r.died) for r in world.records(SiblingReset)}
    assert resets == dict.fromkeys(held, ("Drained", False))


def test_a_new_coordinator_takes_no_site_for_away_before_its_first_beat():
    world = TwoSites(job_config(**JOB | {"pipeline": {"maxStaleness": 2, "window": 0.25}}))
    world.begin()
    begun = world.planner.state.started
    world.cut = True
    world.restart_coordinator("c2")
    context = world.planner.context
    assert context.held_away == 0
    assert context.state.started == begun
