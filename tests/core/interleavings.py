"""The protocol as a state machine: the real `Planner` among roles whose every move is a choice of the test.

Nothing happens by itself and nothing is timed: `Model.choices` lists all that could happen next (a message arrives, an
engine finishes, somebody dies), `Model.do` makes one of it happen and checks every invariant of
`rljob_core/STALENESS.md` (named in brackets below). A search may thus visit all interleavings, and a random walk any.

What the roles do is as little as the real ones' contracts promise: streams keep their order, everything else may be
late, come twice after a death, or never.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydantic import BaseModel

from rljob_core.actions import (
    Action,
    Announce,
    DeletePayloads,
    DeleteRewards,
    Observation,
    PayloadSeen,
    PipelineChanged,
    RewardsSeen,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.job_state import JobState
from rljob_core.messages import (
    Cancel,
    CheckpointWritten,
    EngineGone,
    EngineSignal,
    EngineWork,
    Fence,
    Finish,
    Generate,
    Hello,
    MicroBatch,
    PayloadMissing,
    Resume,
    RewardResult,
    StepProposed,
    StepStats,
    TrainerReady,
    TrainerWork,
)
from rljob_core.planner import Planner
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    GroupAborted,
    GroupReserved,
    RecordBatch,
    StepCommitted,
    Writer,
)
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import VersionSpan, group_of

Choice = tuple[str, str]
"""What happens, and to whom."""
Key = tuple[str, int]
"""A trajectory and its attempt."""


class Violated(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise `Violated` unless it holds."""
    if not holds:
        raise Violated(what)


@dataclass
class ModelEngine:
    """An engine instance with as many slots as it is given work for."""

    version: int = 0
    inbox: list[EngineWork] = field(default_factory=list)
    held: list[Generate] = field(default_factory=list)
    running: dict[Key, VersionSpan] = field(default_factory=dict)
    taken: set[Key] = field(default_factory=set)


@dataclass
class ModelTrainer:
    """A gang: `read` holds what it fed to backward in the open step, with the spans that the payloads had."""

    attempt: int = 1
    epoch: int = 0
    resumed: int = 0
    version: int | None = None
    manifest: str = ""
    proposal: StepCommitted | None = None
    inbox: list[TrainerWork] = field(default_factory=list)
    fed: list[tuple[str, ...]] | None = None
    read: dict[str, VersionSpan] = field(default_factory=dict)


@dataclass
class Truth:
    """What really happened, as nobody in the model knows it: the invariants are about this."""

    stamps: dict[int, int] = field(default_factory=dict)
    planned: dict[str, int] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    consumed: Counter[str] = field(default_factory=Counter)
    sent_with: dict[Key, int] = field(default_factory=dict)
    spans: dict[Key, VersionSpan] = field(default_factory=dict)
    fed: dict[str, dict[str, VersionSpan]] = field(default_factory=dict)
    chain: list[str] = field(default_factory=lambda: [""])


class Model:
    """One job, from its coordinator's start to its end.

    Args:
        config: of the job.
        engines: how many.
        deaths: how many processes may die on the way, whichever and whenever; a trainer may only seem to.
        change: of spec.pipeline, at any time.
        server_fails: a death may also be one of these: an event comes twice, a payload is lost, a coordinator that
            was replaced writes to a ledger that had lost its tail.
    """

    def __init__(
        self,
        config: JobConfig,
        *,
        engines: int = 2,
        deaths: int = 0,
        change: PipelineSpec | None = None,
        server_fails: bool = False,
    ) -> None:
        self.config = config
        self.server_fails = server_fails
        self.deaths = deaths
        self.change = change
        self.ledger: list[RecordBatch] = []
        self.truth = Truth()
        self.engines = {f"e{n}.x": ModelEngine() for n in range(engines)}
        self.dead: list[str] = []
        self.trainer = ModelTrainer()
        self.zombie: ModelTrainer | None = None
        """A gang that was taken for dead."""
        self.announced: Announce | None = None
        self.payloads: dict[int, Summary] = {}
        self.rewards: dict[int, RewardResult] = {}
        self.seen = [0, 0]
        """Up to where the coordinator has read payloads and rewards."""
        self.events: list[Observation] = []
        self.late: list[Action] = []
        """Of a coordinator that was replaced, and does not know it yet."""
        self.sequence = 0
        self.instances = 1
        self.replaced: Planner | None = None
        """A coordinator that does not know yet that another one is in charge."""
        self.finished = ""
        self.planner = Planner(config)
        self._perform(self.planner.start("c1", 0.0))
        for name in self.engines:
            self._signal(name)
        self._say(TrainerReady(1, 0, None))

    # ------------------------------------------------------------------------------------------ what may happen

    def choices(self) -> list[Choice]:
        """All that may happen next; nothing when the job is over, or stuck."""
        if self.finished:
            return []
        found = list(self._coordinator_choices())
        for name, engine in self.engines.items():
            if engine.inbox:
                found.append(("deliver", name))
            if self.announced is not None and self.announced.version > engine.version:
                found.append(("swap", name))
            found += [("finish", f"{name} {trajectory}@{attempt}") for trajectory, attempt in engine.running]
        if self.trainer.inbox:
            found.append(("train", ""))
        if self.zombie is not None and self.zombie.inbox:
            found.append(("wake", ""))
        if self.change is not None:
            found.append(("change", ""))
        found += [("expire", name) for name in self.dead]
        if self.late:
            found += [("late", ""), ("never", "")]
        if self.deaths:
            found += [(f"{what} and die", "") for what, _ in self._coordinator_choices()]
            found += [("die", name) for name in self.engines if len(self.engines) > 1]
            found += [("die", "coordinator"), ("die", "trainer"), ("freeze", "")]
        if self.deaths and self.server_fails:
            # One that the coordinator has not seen yet would be waited for without end: its engine is done with it.
            found += [("lose", str(sequence)) for sequence in self.payloads if sequence <= self.seen[0]]
            found += [("repeat", "")] if self.events else []
            found += [("repeat work", "")] if self.trainer.inbox else []
            found += [("write late", "")] if self.replaced is not None else []
        return found

    def _coordinator_choices(self) -> Iterator[Choice]:
        if self._next(self.payloads, 0):
            yield "read payload", ""
        if self._next(self.rewards, 1):
            yield "read reward", ""
        if self.events:
            yield "read event", ""

    def do(self, choice: Choice) -> None:
        """It happens.

        Raises:
            Violated: an invariant does not hold any more.
        """
        what, whom = choice
        if what.endswith(" and die"):
            self.deaths -= 1
            self._coordinate(what.removesuffix(" and die"), dies=True)
            self._restart_coordinator()
        elif what.startswith("read "):
            self._coordinate(what, dies=False)
        elif what == "die":
            self.deaths -= 1
            self._die(whom)
        elif what == "freeze":
            self.deaths -= 1
            self.zombie = self.trainer
            self._die("trainer")
        elif what == "wake":
            assert self.zombie is not None
            self._train(self.zombie, self.zombie.inbox.pop(0))
        elif what == "lose":
            self.deaths -= 1
            del self.payloads[int(whom)]
        elif what == "repeat":
            self.deaths -= 1
            self._observe(self.events[0])
        elif what == "repeat work":
            self.deaths -= 1
            self.trainer.inbox.append(self.trainer.inbox[0])
        elif what == "write late":
            assert self.replaced is not None
            decision = self.replaced.decide([EngineGone(name) for name in self.engines], 0.0)
            self.ledger.append(RecordBatch(self.replaced.state.writer, decision.records))
            self.replaced = None
        elif what == "change":
            change, self.change = self.change, None
            assert change is not None
            spec = self.config.spec.model_copy(update={"pipeline": change})
            self.config = self.config.model_copy(update={"spec": spec})
            self._observe(PipelineChanged(change))
        elif what == "never":
            self.late = []
        elif what == "late":
            actions, self.late = self.late, []
            for action in actions:
                self._act(action)
        elif what == "deliver":
            self._deliver(whom)
        elif what == "swap":
            self._swap(whom)
        elif what == "finish":
            self._finish(whom)
        elif what == "train":
            self._train(self.trainer, self.trainer.inbox.pop(0))
        elif what == "expire":
            self.dead.remove(whom)
            self._observe(SignalSeen(whom, None))
        self.check()

    # ------------------------------------------------------------------------------------------ the coordinator

    def _next(self, stream: dict[int, Any], reader: int) -> int:
        return min((sequence for sequence in stream if sequence > self.seen[reader]), default=0)

    def _coordinate(self, what: str, *, dies: bool) -> None:
        """It sees the next thing of a kind; if it dies, then once its records are stored and before it acts."""
        if what == "read payload":
            sequence = self._next(self.payloads, 0)
            self.seen[0] = sequence
            self._observe(PayloadSeen(sequence, (self.payloads[sequence],)), dies=dies)
        elif what == "read reward":
            sequence = self._next(self.rewards, 1)
            self.seen[1] = sequence
            self._observe(RewardsSeen(sequence, (self.rewards[sequence],)), dies=dies)
        else:
            event = self.events[0]
            if not dies:  # it is acknowledged after all that it led to
                self.events.pop(0)
            self._observe(event, dies=dies)

    def _observe(self, observation: Observation, *, dies: bool = False) -> None:
        self._perform(self.planner.decide([observation], 0.0), dies=dies)

    def _perform(self, decision: Any, *, dies: bool = False) -> None:
        if decision.records:
            writer = self.planner.state.writer
            self.ledger.append(RecordBatch(Writer(writer.number, writer.instance), decision.records))
            for record in decision.records:
                self._witness(record)
        if dies:
            self.late = [*self.late, *decision.actions]
            return
        for action in decision.actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case SendToEngine() if action.engine in self.engines:
                self.engines[action.engine].inbox += action.items
            case SendToTrainer(attempt=self.trainer.attempt):
                self.trainer.inbox.append(action.message)
            case SendToTrainer() if self.zombie is not None and action.attempt == self.zombie.attempt:
                self.zombie.inbox.append(action.message)
            case Announce():
                if self.announced is None or action.version >= self.announced.version:
                    self.announced = action
            case DeletePayloads():
                for sequence in action.sequences:
                    self.payloads.pop(sequence, None)
            case DeleteRewards():
                for sequence in action.sequences:
                    self.rewards.pop(sequence, None)
            case _:
                pass

    def _restart_coordinator(self) -> None:
        self.instances += 1
        self.replaced = self.planner if self.server_fails else None
        self.planner = Planner(self.config)
        self.planner.state.replay(self.ledger)
        self.seen = [0, 0]
        self._perform(self.planner.start(f"c{self.instances}", 0.0))
        for name in self.engines:
            self._signal(name)

    def _die(self, whom: str) -> None:
        if whom == "coordinator":
            self._restart_coordinator()
        elif whom == "trainer":
            self.trainer = ModelTrainer(self.trainer.attempt + 1)
            self._say(TrainerReady(self.trainer.attempt, 0, None))
        else:
            del self.engines[whom]
            self.dead.append(whom)

    def _say(self, event: Observation) -> None:
        self.events.append(event)

    # ------------------------------------------------------------------------------------------ engines

    def _signal(self, name: str) -> None:
        engine = self.engines[name]
        signal = EngineSignal(name, "a", engine.version, 1, len(engine.running), 0, 0, 0.0)
        self._observe(SignalSeen(name, signal))

    def _deliver(self, name: str) -> None:
        engine = self.engines[name]
        work = engine.inbox.pop(0)
        if isinstance(work, Cancel):
            named = set(work.trajectories)
            engine.held = [w for w in engine.held if named and w.trajectory not in named]
            engine.running = {k: s for k, s in engine.running.items() if named and k[0] not in named}
        elif (work.trajectory, work.attempt) not in engine.taken:
            engine.taken.add((work.trajectory, work.attempt))
            engine.held.append(work)
            self._start(engine)

    @staticmethod
    def _start(engine: ModelEngine) -> None:
        for work in [w for w in engine.held if w.min_version <= engine.version]:
            engine.held.remove(work)
            engine.running[work.trajectory, work.attempt] = VersionSpan(engine.version, engine.version)

    def _swap(self, name: str) -> None:
        assert self.announced is not None
        engine = self.engines[name]
        engine.version = self.announced.version
        engine.running = {k: VersionSpan(s.min, engine.version) for k, s in engine.running.items()}
        self._start(engine)
        self._signal(name)

    def _finish(self, whom: str) -> None:
        name, _, request = whom.partition(" ")
        trajectory, _, attempt = request.partition("@")
        key = trajectory, int(attempt)
        span = self.engines[name].running.pop(key)
        digest = f"{trajectory}/{attempt}/{name}"
        self.truth.spans[key] = span
        self.sequence += 1
        self.payloads[self.sequence] = Summary(*key, span, 1, 1, digest)
        self.sequence += 1
        self.rewards[self.sequence] = RewardResult(
            *key, digest, float(sum(map(ord, trajectory)) % 2), {}, "d"
        )

    # ------------------------------------------------------------------------------------------ the trainer

    def _train(self, trainer: ModelTrainer, message: TrainerWork) -> None:
        match message:
            case Hello() if message.epoch > trainer.epoch:
                trainer.epoch, trainer.resumed, trainer.fed = message.epoch, 0, None
                self._say(TrainerReady(trainer.attempt, trainer.epoch, trainer.version, trainer.proposal, 0))
            case Resume(attempt=trainer.attempt, epoch=trainer.epoch) if message.number > trainer.resumed:
                trainer.resumed, trainer.proposal = message.number, None
                trainer.version, trainer.manifest = message.version, message.manifest
                trainer.fed, trainer.read = [], {}
                if message.last and message.version != message.checkpoint_version:
                    self._say(CheckpointWritten(trainer.attempt, message.version, "k"))
            case MicroBatch() if trainer.fed is not None and (
                message.attempt,
                message.epoch,
                message.resume,
                message.step,
                message.micro_batch,
            ) == (trainer.attempt, trainer.epoch, trainer.resumed, trainer.version, len(trainer.fed)):
                self._feed(trainer, message)
            case Fence():
                require(trainer is self.zombie, "[fence] the newest attempt is told to stop")
                self.zombie = None
            case Finish() if trainer is self.trainer:
                self.finished = message.outcome

    def _feed(self, trainer: ModelTrainer, message: MicroBatch) -> None:
        assert trainer.fed is not None
        trainer.proposal = None
        gone = tuple(i.trajectory for i in message.items if i.sequence not in self.payloads)
        if gone:
            trainer.fed = None
            self._say(PayloadMissing(trainer.attempt, trainer.epoch, message.step, gone))
            return
        for item in message.items:
            span = self.payloads[item.sequence].span
            require(
                message.step - span.min <= message.max_staleness,
                f"[bound] {item.trajectory} was fed too stale",
            )
            trainer.read[item.trajectory] = span
        trainer.fed.append(tuple(i.trajectory for i in message.items))
        if not message.last:
            return
        version = message.step + 1
        digest = f"m{version}-{trainer.attempt}-{trainer.epoch}-{trainer.resumed}"
        trainer.proposal = StepCommitted(
            version, trainer.manifest, trainer.attempt, trainer.epoch, tuple(trainer.fed), "", digest, digest
        )
        self.truth.fed[digest] = dict(trainer.read)
        trainer.version, trainer.manifest, trainer.fed, trainer.read = version, digest, [], {}
        self._say(StepProposed(trainer.proposal, StepStats()))

    # ------------------------------------------------------------------------------------------ invariants

    def _witness(self, record: Any) -> None:
        """What a record that is in the ledger for good means for the truth."""
        truth = self.truth
        match record:
            case BufferOpened():
                require(record.step not in truth.stamps, f"[stamp] buffer {record.step} opened twice")
                truth.stamps[record.step] = record.max_staleness
            case GroupReserved():
                require(record.group not in truth.planned, f"[once] {record.group} planned twice")
                truth.planned[record.group] = record.siblings
            case Dispatched():
                for key in zip(record.trajectories, record.attempts, strict=True):
                    truth.sent_with[key] = record.min_version
            case GroupAborted():
                truth.ended[record.group] += 1
            case StepCommitted():
                self._commit(record)

    def _commit(self, record: StepCommitted) -> None:
        truth = self.truth
        require(
            record.version == len(truth.chain), f"[chain] version {record.version} committed out of order"
        )
        require(record.parent == truth.chain[-1], f"[chain] version {record.version} has another parent")
        truth.chain.append(record.manifest)
        fed = truth.fed[record.manifest]
        ids = [trajectory for part in record.micro_batches for trajectory in part]
        require(sorted(ids) == sorted(fed), f"[truth] version {record.version} was not made of what it says")
        bound = truth.stamps[record.version - 1]
        for trajectory in ids:
            stale = record.version - 1 - fed[trajectory].min
            require(stale <= bound, f"[bound] {trajectory} is consumed with staleness {stale} under {bound}")
        truth.consumed.update(ids)
        whole = Counter(map(group_of, ids))
        for group, siblings in whole.items():
            require(siblings == truth.planned[group], f"[whole] {group} is consumed in part")
            truth.ended[group] += 1

    def check(self) -> None:
        """Every invariant.

        Raises:
            Violated: one does not hold.
        """
        state, truth = self.planner.state, self.truth
        require(all(n == 1 for n in truth.consumed.values()), "[once] a trajectory is trained twice")
        require(all(n == 1 for n in truth.ended.values()), "[once] a group ends twice")
        open_groups = [e.group for b in state.buffers.buffers.values() for e in b.entries.values()]
        require(len(open_groups) == len(set(open_groups)), "[place] a group has two places")
        require(set(open_groups) == set(state.groups), "[place] a group has no place")
        require(set(open_groups) | set(truth.ended) == set(truth.planned), "[lost] a group is lost")
        for buffer in state.buffers.buffers.values():
            require(len(buffer.entries) <= buffer.capacity, f"[room] buffer {buffer.step} is overfull")
            require(
                buffer.max_staleness == truth.stamps[buffer.step], f"[stamp] of buffer {buffer.step} changed"
            )
            for entry in buffer.entries.values():
                require(
                    buffer.step - entry.base <= buffer.max_staleness, f"[bound] {entry.group} is too stale"
                )
                for sibling in state.groups[entry.group].siblings:
                    span = truth.spans.get((sibling.id, sibling.attempt))
                    require(span is None or entry.base <= span.min, f"[base] of {entry.group} is not so old")
        for engine in self.engines.values():
            for key, span in engine.running.items():
                require(span.min >= truth.sent_with[key], f"[min] {key} started below its minVersion")

    # ------------------------------------------------------------------------------------------ for searches

    def fork(self) -> Model:
        """An equal model that goes its own way."""
        copy: Model = _fork(self)
        return copy

    def replays(self) -> None:
        """The ledger alone leads to the coordinator's state."""
        rebuilt = JobState()
        rebuilt.replay(self.ledger)
        state = self.planner.state
        require(_state_key(rebuilt) == _state_key(state), "[fold] the ledger says something else")

    def key(self) -> int:
        """Equal for models from which the same can happen; engines have no names there."""
        planner = self.planner
        order = sorted(self.engines, key=self._engine_key)
        names = {name: str(place) for place, name in enumerate(order)}
        names |= {name: f"dead {place}" for place, name in enumerate(self.dead)}
        where = {s: (p.trajectory, p.attempt, p.digest.rpartition("/")[0]) for s, p in self.payloads.items()}
        return hash(
            (
                _state_key(planner.state, names),
                _waiting_key(planner.state),
                planner.trainer_accepted,
                planner.resumes,
                planner.asked,
                frozenset((names.get(e), v.version, v.assigned) for e, v in planner.engines.items()),
                frozenset(planner.early_rewards),
                tuple(self._engine_key(name) for name in order),
                tuple(names[name] for name in self.dead),
                _trainer_key(self.trainer, where),
                None if self.zombie is None else _trainer_key(self.zombie, where),
                self.change is None,
                self.announced.manifest if self.announced else None,
                tuple((w, self.payloads[s].span, s <= self.seen[0]) for s, w in where.items()),
                tuple((r.trajectory, r.attempt, s <= self.seen[1]) for s, r in self.rewards.items()),
                tuple(_message_key(event, where) for event in self.events),
                tuple(map(repr, self.late)),
                self.deaths,
                self.finished,
            )
        )

    def _engine_key(self, name: str) -> tuple[Any, ...]:
        engine = self.engines[name]
        view = self.planner.engines.get(name)
        return (
            engine.version,
            tuple(map(repr, engine.inbox)),
            tuple(map(repr, engine.held)),
            tuple(sorted(engine.running.items())),
            tuple(sorted(engine.taken)),
            (-1, -1) if view is None else (view.version, view.assigned),
        )


def _state_key(state: JobState, names: dict[str, str] | None = None) -> tuple[Any, ...]:
    names = names or {}
    return (
        tuple(
            (b.step, b.max_staleness, tuple((e.group, e.base, e.state) for e in b.entries.values()))
            for b in state.buffers.buffers.values()
        ),
        state.buffers.version,
        state.buffers.next_step,
        tuple(
            (
                g.id,
                s.attempt,
                s.state,
                names.get(s.engine, s.engine),
                s.min_version,
                s.payload is None,
                s.reward,
            )
            for g in state.groups.values()
            for s in g.siblings
        ),
        tuple((m.micro_batch, m.groups, m.last) for m in state.micro_batches),
        (state.trainer.attempt, state.trainer.epoch) if state.trainer else None,
        (state.commit.version, state.commit.manifest),
        state.checkpoint.version if state.checkpoint else None,
        state.finished.outcome if state.finished else None,
        state.next_prompt,
        state.next_ordinal,
        state.writer.number,
    )


def _waiting_key(state: JobState) -> tuple[Any, ...]:
    """Who is dispatched next: no more than a preference, which a ledger leads to but roughly."""
    places: dict[str, Any] = {}
    for step, place, trajectory in sorted(state.waiting._heap):
        sibling = state.sibling(trajectory)
        # Of what stands there twice, the first place counts.
        if sibling is not None and sibling.state == "reserved":
            places.setdefault(trajectory, (step, place))
    return tuple(places.items())


def _trainer_key(trainer: ModelTrainer, where: dict[int, Any]) -> tuple[Any, ...]:
    return (
        trainer.attempt,
        trainer.epoch,
        trainer.resumed,
        trainer.version,
        trainer.manifest,
        trainer.proposal.manifest if trainer.proposal else None,
        tuple(trainer.fed) if trainer.fed is not None else None,
        tuple(_message_key(message, where) for message in trainer.inbox),
    )


def _message_key(message: Any, where: dict[int, Any]) -> Any:
    if isinstance(message, MicroBatch):
        items = tuple(where.get(i.sequence) for i in message.items)
        return (
            "micro-batch",
            message.step,
            message.micro_batch,
            message.attempt,
            message.epoch,
            message.resume,
            items,
        )
    return repr(message)


_FIXED: set[type] = {str, int, float, bool, type(None), tuple}
"""Kinds whose objects never change."""
_CHANGING: dict[type, tuple[str, ...]] = {}
"""Attributes of those that do."""


def _fork(thing: Any) -> Any:
    """A copy that shares what never changes; nothing that changes may be in two places of the original."""
    kind = type(thing)
    if kind is dict:
        return {k: v if type(v) in _FIXED else _fork(v) for k, v in thing.items()}
    if kind is list:
        return [v if type(v) in _FIXED else _fork(v) for v in thing]
    if kind in {set, Counter, deque}:
        return thing.copy()
    if kind in _FIXED:
        return thing
    names = _CHANGING.get(kind)
    if names is None:
        names = _attributes(kind, thing)
        if not names:
            _FIXED.add(kind)
            return thing
        _CHANGING[kind] = names
    copy = kind.__new__(kind)
    for name in names:
        value = getattr(thing, name)
        setattr(copy, name, value if type(value) in _FIXED else _fork(value))
    return copy


def _attributes(kind: type, thing: Any) -> tuple[str, ...]:
    """Of an object that may change; none of one that does not."""
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if frozen or issubclass(kind, Enum | BaseModel):
        return ()
    return tuple(getattr(kind, "__slots__", ())) or tuple(vars(thing))
