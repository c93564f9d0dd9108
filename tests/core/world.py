"""A simulation around the planner, in virtual time: engines, a reward role and a trainer that follow its messages.

It does not mock a port: it passes the pure `Planner` the observations that real roles would make, in any order that a
test wants, and executes the planner's actions.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rljob_core.actions import (
    Action,
    Announce,
    DeletePayloads,
    DeleteRewards,
    FindMark,
    FindProgress,
    ListProgress,
    MarkFound,
    OwnHeartbeat,
    PayloadSeen,
    ProgressFound,
    ProgressListed,
    RequestScores,
    RewardsSeen,
    SendMark,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    SiteMarkSeen,
    StoresRead,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.failures import Failure, Reason
from rljob_core.messages import (
    RELEASED,
    Cancel,
    CheckpointWritten,
    EngineDied,
    EngineSignal,
    Finish,
    Generate,
    GenerationEnded,
    GroupMember,
    Hello,
    MicroBatch,
    PayloadMissing,
    Release,
    Resume,
    RewardResult,
    ScoreGroup,
    StepProposed,
    StepStats,
    TrainerReady,
)
from rljob_core.planner import Planner
from rljob_core.records import RecordBatch, StepCommitted, Writer
from rljob_core.spec import RLJobSpec
from rljob_core.stable_hash import stable_hash
from rljob_core.trajectory import VersionSpan, group_of


def job_config(**changes: Any) -> JobConfig:
    """Create a small job's configuration; `changes` (camelCase, nested) override fields of the spec."""
    spec: dict[str, Any] = {
        "steps": 4,
        "model": {"uri": "/model"},
        "data": {"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 2},
        "pipeline": {"mode": "BoundedAsync"},
        "rollout": {"pools": [{"name": "a"}]},
        "trainer": {"microBatchTokens": 1},
    }
    for key, value in changes.items():
        spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
    return JobConfig(
        namespace="default",
        job="test",
        uid="u1",
        spec=RLJobSpec.model_validate(spec),
        weights_uri="/w",
        checkpoint_uri="/c",
        trainer_log_uri="/t",
    )


LOOK_SECONDS = 0.25
"""How often engines say how far their responses have come."""


@dataclass
class SimulatedEngine:
    """An engine with a number of slots; a trajectory of n tokens takes n steps from the time it gets a slot."""

    name: str
    slots: int
    version: int = -1
    running: dict[tuple[str, int], VersionSpan] = field(default_factory=dict)
    waiting: list[Generate] = field(default_factory=list)
    taken: set[tuple[str, int]] = field(default_factory=set)
    begun: dict[tuple[str, int], float] = field(default_factory=dict)
    """When it began what it is running."""
    survivors: set[tuple[str, int]] = field(default_factory=set)
    """Of what it was given, that which has outlived an engine."""
    released: list[Generate] = field(default_factory=list)
    """What it was asked to give back, and has not begun."""
    stuck: str = ""
    beginning: str = ""
    """The group that it begins, of those that have outlived an engine; it begins the next one a token later."""

    def next(self) -> Generate | None:
        """What it can begin now."""
        for work in self.waiting:
            in_turn = not work.survivor or group_of(work.trajectory) == (
                self.beginning or group_of(work.trajectory)
            )
            if in_turn and work.min_version <= self.version:
                return work
        return None

    def give(self, work: Any) -> None:
        """Receive an item of the work queue; an attempt that was received before is ignored."""
        if isinstance(work, Cancel):
            named = set(zip(work.trajectories, work.attempts, strict=True))
            self.waiting = [w for w in self.waiting if (w.trajectory, w.attempt) not in named]
            for key in named & self.running.keys():
                del self.running[key]
        elif isinstance(work, Release):
            named = set(zip(work.trajectories, work.attempts, strict=True))
            self.released += [w for w in self.waiting if (w.trajectory, w.attempt) in named]
            self.waiting = [w for w in self.waiting if (w.trajectory, w.attempt) not in named]
        elif (work.trajectory, work.attempt) not in self.taken:
            self.taken.add((work.trajectory, work.attempt))
            self.waiting.append(work)
            if work.survivor:
                self.survivors.add((work.trajectory, work.attempt))


class World:
    """The planner, its ledger and the simulated roles; `run` executes events until none is left."""

    def __init__(
        self,
        config: JobConfig,
        *,
        engines: int = 2,
        slots: int = 4,
        length: Callable[[Generate], int] = lambda work: 1 + work.seed % 7,
        reward: Callable[[str], float] = lambda trajectory: float(stable_hash(trajectory) % 2),
        step_seconds: float = 0.01,
        train_seconds: Callable[[int], float] = lambda tokens: 0.001 * tokens,
        prefetch: float = 0.25,
        poison: Callable[[Generate], bool] = lambda work: False,
        poison_token: int = 0,
        restart_seconds: float = 1.0,
        hang_seconds: float = 0.0,
        quarantined_hang_seconds: float | None = None,
    ) -> None:
        self.config = config
        self.poison, self.restart_seconds = poison, restart_seconds
        self.poison_token = poison_token
        """How many tokens an engine makes of what kills it before it dies."""
        self.hang_seconds = hang_seconds
        """For how long an engine that poison kills makes no token before its death is noticed."""
        self.quarantined_hang_seconds = (
            hang_seconds if quarantined_hang_seconds is None else quarantined_hang_seconds
        )
        """The same of an engine that has nothing but what has outlived another one."""
        self.deaths: list[tuple[str, ...]] = []
        """Ids of what each engine was generating, and was waiting to generate, that poison killed."""
        self.slot_seconds = dict.fromkeys(("made", "lost", "hung", "down"), 0.0)
        """What slots were spent on: what came to its end, what did not, and engines that hung or were being started."""
        self.length, self.reward = length, reward
        self.step_seconds, self.train_seconds = step_seconds, train_seconds
        self.prefetch = prefetch
        self.now = 0.0
        self.ledger: list[RecordBatch] = []
        self.engines = {f"e{i}.x": SimulatedEngine(f"e{i}.x", slots) for i in range(engines)}
        self.pools: dict[str, str] = {}
        """Pools of engines; those that are not in it are in the pool `a`."""
        self.marks: dict[str, int] = {}
        """The newest mark among the progress of each site."""
        self.announced: Announce | None = None
        self.attempt = 1
        self.epoch = 0
        self.trainer_version = 0
        self.manifest = ""
        self.fed: list[tuple[str, ...]] = []
        self.trainer_free = 0.0
        self.finished = ""
        self.deleted: set[int] = set()
        self.stored: dict[int, tuple[str, int]] = {}
        self.streams: list[PayloadSeen | RewardsSeen] = []
        self.consumed: list[tuple[int, str]] = []
        self.commit_times: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._sequences = itertools.count(1)
        self.planner = Planner(config, prefetch=prefetch)
        self.dies_after_append = ""
        """Name of the coordinator after the one that dies once its next records are stored, before it acts on them."""
        self.rewards_first = False
        self.fails: Callable[[GroupMember], bool] = lambda member: False
        """Whether an answer of a group fails when the group is scored."""
        self.resumed = 0

    # ---- the coordinator

    def start(self) -> None:
        """Start coordinator, engines and trainer."""
        self.take_charge("c1")
        for engine in list(self.engines.values()):
            self.swap(engine)
            self.signal(engine)
        self.observe(TrainerReady(self.attempt, 0, None))

    def perform(self, decision: Any) -> None:
        if decision.records:
            writer = self.planner.state.writer
            self.ledger.append(RecordBatch(Writer(writer.number, writer.instance), decision.records))
            if (successor := self.dies_after_append) != "":
                self.dies_after_append = ""
                self.restart_coordinator(successor)
                return
        for action in decision.actions:
            self.act(action)

    def observe(self, *observations: Any) -> None:
        self.perform(self.planner.decide(observations, self.now))

    def take_charge(self, instance: str) -> None:
        """Claim an epoch; nothing that the ledger does not say is in the stores."""
        planner = self.planner
        self.perform(planner.start(instance, self.now))
        if self.planner is planner:  # unless it died at once
            self.observe(StoresRead(()))

    def restart_coordinator(self, instance: str) -> None:
        """The coordinator dies and another one starts from the ledger and what the streams still hold."""
        self.planner = Planner(self.config, prefetch=self.prefetch)
        self.planner.state.replay(self.ledger)
        planner = self.planner
        self.take_charge(instance)
        for engine in list(self.engines.values()):
            if self.planner is planner:
                self.signal(engine)
        if self.planner is planner:  # it may have died at once, and its successor has read all this
            self.observe(*(m for m in self.streams if m.sequence not in self.deleted))

    def act(self, action: Action) -> None:
        match action:
            case SendToEngine() if action.engine in self.engines:
                engine = self.engines[action.engine]
                for item in action.items:
                    engine.give(item)
                self.after(0.0, lambda: self.give_back(engine))
                self.after(0.0, lambda: self.fill(engine))
            case SendToTrainer(attempt=self.attempt):
                self.after(0.0, lambda: self.train(action.message))
            case Announce():
                self.announced = action
                for engine in self.engines.values():
                    self.after(0.0, lambda e=engine: self.swap(e))
            case DeletePayloads() | DeleteRewards():
                self.deleted.update(action.sequences)
            case FindProgress():  # none of it is ever stored
                for one in zip(action.trajectories, action.attempts, strict=True):
                    self.after(0.0, lambda one=one: self.observe(ProgressFound(*one, None)))
            case ListProgress():
                self.after(0.0, lambda: self.observe(ProgressListed(())))
            case RequestScores():
                self.after(0.0, lambda: self.score(action.group))
            case SendMark():
                self.after(0.0, lambda: self.mark(action))
            case FindMark():
                found = MarkFound(action.site, self.marks.get(action.site, 0))
                self.after(0.0, lambda: self.observe(found))
            case _:  # an engine that is retired may live on, unheard
                pass

    def mark(self, mark: SendMark) -> None:
        """A mark has gone by way of a site, where nothing waits."""
        self.marks[mark.site] = mark.number
        self.observe(SiteMarkSeen(next(self._sequences), mark.site, mark.number))

    # ---- engines

    def swap(self, engine: SimulatedEngine) -> None:
        if self.announced is not None and self.announced.version > engine.version:
            engine.version = self.announced.version
            for key, span in engine.running.items():
                engine.running[key] = VersionSpan(span.min, engine.version)
            self.signal(engine)
            self.fill(engine)

    def signal(self, engine: SimulatedEngine) -> None:
        if engine.name in self.engines:
            running, held = len(engine.running), len(engine.running) + len(engine.waiting)
            pool = self.pools.get(engine.name, "a")
            counts = (0, engine.version, held, engine.slots, running, 0, 0)
            site = self.site_of(engine.name)
            signal = EngineSignal(engine.name, pool, *counts, stuck=engine.stuck, site=site)
            self.observe(SignalSeen(engine.name, signal))

    def site_of(self, engine: str) -> str:
        """Where an engine says that it is; none is anywhere but at the hub."""
        return ""

    def give_back(self, engine: SimulatedEngine) -> None:
        released, engine.released = engine.released, []
        for work in released:
            self.observe(GenerationEnded(engine.name, work.trajectory, work.attempt, RELEASED, failure=False))

    def fill(self, engine: SimulatedEngine) -> None:
        while engine.name in self.engines and len(engine.running) < engine.slots:
            work = engine.next()
            if work is None:
                return
            engine.waiting.remove(work)
            if work.survivor and not engine.beginning:
                engine.beginning = group_of(work.trajectory)
                self.after(self.step_seconds, lambda: self.begun(engine))
            is_poison = self.poison(work)
            if is_poison and not self.poison_token:
                self.poisoned(engine, work)
                return
            engine.running[work.trajectory, work.attempt] = VersionSpan(engine.version, engine.version)
            engine.begun[work.trajectory, work.attempt] = self.now
            if is_poison:
                self.after(self.poison_token * self.step_seconds, lambda w=work: self.kill_with(engine, w))
            self.after(self.length(work) * self.step_seconds, lambda w=work: self.complete(engine, w))

    def begun(self, engine: SimulatedEngine) -> None:
        """An engine has made the first tokens of what it was beginning."""
        engine.beginning = ""
        self.fill(engine)

    def kill_with(self, engine: SimulatedEngine, work: Generate) -> None:
        """An engine dies of what it has generated some tokens of, if it still does."""
        if engine.name in self.engines and (work.trajectory, work.attempt) in engine.running:
            self.poisoned(engine, work)

    def poisoned(self, engine: SimulatedEngine, work: Generate) -> None:
        """An engine dies of what it generates, or hangs first; another instance of its pod follows."""
        held = dict.fromkeys((*(t for t, _ in engine.running), *(w.trajectory for w in engine.waiting)))
        self.deaths.append((*held, work.trajectory) if work.trajectory not in held else tuple(held))
        looked = self.now // LOOK_SECONDS * LOOK_SECONDS
        tokens = {
            t: max(0, int((looked - engine.begun[t, attempt]) / self.step_seconds))
            for t, attempt in engine.running
        }
        self.slot_seconds["lost"] += sum(self.now - engine.begun[key] for key in engine.running)
        only_quarantined = {(work.trajectory, work.attempt), *engine.running} <= engine.survivors
        only_quarantined = only_quarantined and all(w.survivor for w in engine.waiting)
        hang_seconds = self.quarantined_hang_seconds if only_quarantined else self.hang_seconds
        self.slot_seconds["hung"] += engine.slots * hang_seconds
        self.slot_seconds["down"] += engine.slots * self.restart_seconds
        engine.running, engine.waiting = {}, []
        del self.engines[engine.name]
        pod, number = engine.name.split(".x")
        message = f"it died of {work.trajectory}"
        died = EngineDied(engine.name, 139, message, engine.beginning, tuple(tokens), tuple(tokens.values()))
        successor = SimulatedEngine(f"{pod}.x{int(number or 0) + 1}", engine.slots)

        def start() -> None:
            self.engines[successor.name] = successor
            self.swap(successor)
            self.signal(successor)

        if hang_seconds:
            self.after(hang_seconds, lambda: self.observe(died))
        else:
            self.observe(died)
        self.after(hang_seconds + self.restart_seconds, start)

    def complete(self, engine: SimulatedEngine, work: Generate) -> None:
        span = engine.running.pop((work.trajectory, work.attempt), None)
        if span is None or engine.name not in self.engines:
            return
        sequence, tokens = next(self._sequences), self.length(work)
        key = (work.trajectory, work.attempt)
        self.slot_seconds["made"] += self.now - engine.begun.get(key, self.now)
        self.stored[sequence] = key
        digest = f"{work.trajectory}/{work.attempt}"
        summary = Summary(*key, span, tokens, tokens, digest)
        self.fill(engine)
        messages: list[PayloadSeen | RewardsSeen] = [PayloadSeen(sequence, (summary,))]
        if not self.config.spec.reward.per_group:
            result = RewardResult(*key, digest, self.reward(work.trajectory), {}, "d")
            messages.append(RewardsSeen(next(self._sequences), (result,)))
        for message in reversed(messages) if self.rewards_first else messages:
            self.streams.append(message)
            self.observe(message)

    def score(self, group: ScoreGroup) -> None:
        """A reward worker scores a group; if answers fail, it publishes no others, and may be asked again."""
        failed = tuple(member for member in group.members if self.fails(member))
        if failed:
            self.after(0.05, lambda: self.publish_scores(group.members))  # where they do not
        self.publish_scores(failed or group.members, Failure(Reason.REWARD_RAISED, "no") if failed else None)

    def publish_scores(self, members: tuple[GroupMember, ...], failure: Failure | None = None) -> None:
        sequence = next(self._sequences)
        results = (
            RewardResult(
                m.trajectory, m.attempt, m.digest, self.reward(m.trajectory), {}, f"call {sequence}", failure
            )
            for m in members
        )
        message = RewardsSeen(sequence, tuple(results))
        self.streams.append(message)
        self.observe(message)

    def kill_engine(self, name: str) -> None:
        """An engine dies; the coordinator hears nothing of it but silence."""
        self.engines.pop(name, None)

    # ---- the trainer

    def train(self, message: Any) -> None:
        match message:
            case Hello():
                if message.epoch > self.epoch:
                    self.epoch, self.resumed = message.epoch, 0
                    self.observe(TrainerReady(self.attempt, self.epoch, self.trainer_version))
            case Resume(epoch=self.epoch) if message.number > self.resumed:
                self.trainer_version, self.manifest = message.version, message.manifest
                self.fed, self.resumed = [], message.number
                if message.last and message.version != message.checkpoint_version:
                    self.observe(CheckpointWritten(self.attempt, message.version, message.manifest, "k"))
            case MicroBatch(attempt=self.attempt, epoch=self.epoch) if (
                message.resume,
                message.step,
                message.micro_batch,
            ) == (self.resumed, self.trainer_version, len(self.fed)):
                assert all(message.step - i.span.min <= message.max_staleness for i in message.items)
                if gone := tuple(i.trajectory for i in message.items if i.sequence in self.deleted):
                    self.observe(PayloadMissing(self.attempt, self.epoch, message.step, gone))
                    return
                tokens = sum(i.tokens for i in message.items)
                self.trainer_free = max(self.trainer_free, self.now) + self.train_seconds(tokens)
                self.fed.append(tuple(i.trajectory for i in message.items))
                if message.last:
                    self.at(self.trainer_free, lambda fed=tuple(self.fed): self.propose(message, fed))
            case Finish():
                self.finished = "Succeeded" if message.failure is None else "Failed"

    def propose(self, message: MicroBatch, fed: tuple[tuple[str, ...], ...]) -> None:
        step = (message.attempt, message.epoch, message.resume, message.step)
        if step != (self.attempt, self.epoch, self.resumed, self.trainer_version):
            return
        version = message.step + 1
        digest = f"m{version}-{self.attempt}-{self.epoch}"
        proposal = StepCommitted(
            version=version,
            parent=self.manifest,
            attempt=self.attempt,
            epoch=self.epoch,
            micro_batches=fed,
            max_staleness=message.max_staleness,
            random_state="",
            manifest=digest,
            key=f"v{version}-{self.attempt}",
        )
        before = self.planner.state.version
        self.observe(StepProposed(proposal, StepStats()))
        if self.planner.state.version > before:
            self.trainer_version, self.manifest, self.fed = version, digest, []
            self.consumed += [(message.step, t) for part in fed for t in part]
            self.commit_times.append(self.now)

    def restart_trainer(self) -> None:
        """The gang dies and the operator starts the next attempt."""
        self.attempt += 1
        self.epoch = self.resumed = 0
        self.fed = []
        self.trainer_free = self.now
        self.observe(TrainerReady(self.attempt, 0, None))

    # ---- time

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def after(self, delay: float, what: Callable[[], None]) -> None:
        self.at(self.now + delay, what)

    def step(self) -> bool:
        """The next thing happens; whether there was one."""
        if not self._events:
            return False
        self.now, _, what = heapq.heappop(self._events)
        what()
        return True

    def beat(self, times: int = 1, *, heard: bool = True) -> None:
        """The coordinator's heartbeats come back; live engines signal too, unless only after all of them."""
        for number in range(1, times + 1):
            self.observe(OwnHeartbeat())
            for engine in list(self.engines.values()) if heard or number == times else ():
                self.signal(engine)

    def run(self, limit: int = 1_000_000) -> None:
        """Until the job is finished or nothing happens any more."""
        for _ in range(limit):
            if self.finished or not self.step():
                return
