"""A model of the protocol as a state machine: the real `Planner` with simulated roles; tests choose every event.

Nothing happens by itself and there is no clock. `Model.choices` lists every event that can happen next (a message
arrives, an engine finishes a response), `Model.mishaps` every fault (a process dies, the server loses a message), and
`Model.do` executes one of them and checks every invariant of `docs/design/staleness.md`. So a search can visit all
interleavings, and a random walk can take any of them.

The simulated roles guarantee no more than the contracts of the real ones: streams keep their order; everything else may
be late, arrive twice after a death, or never arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from model_keys import fork, message_key, state_key, trainer_key
from model_roles import ModelEngine, ModelTrainer, progress_of
from model_truth import LedgerAccount, Truth, Violated, require

from rljob_core.actions import (
    Action,
    Announce,
    CheckRewards,
    DeletePayloads,
    DeleteRewards,
    DropProgress,
    EngineDrained,
    FindProgress,
    ListProgress,
    MarkFound,
    Observation,
    OwnHeartbeat,
    PayloadAbsent,
    PayloadSeen,
    PipelineChanged,
    ProgressFound,
    ProgressListed,
    RetireEngine,
    RewardsComplete,
    RewardsSeen,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    SiteMarkSeen,
    StoredProgress,
    StoresRead,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.errors import Fenced
from rljob_core.job_state import JobState
from rljob_core.messages import (
    EngineDied,
    EngineGone,
    Fence,
    Finish,
    MicroBatch,
    RewardResult,
    TrainerMessage,
    TrainerReady,
)
from rljob_core.planner import Planner, early_trial
from rljob_core.planner.heartbeats import RESEND_HEARTBEATS
from rljob_core.planner.liveness import LEASE_HEARTBEATS
from rljob_core.planner.stored_messages import SCORE_HEARTBEATS
from rljob_core.records import RecordBatch, StepCommitted
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import State, group_of

__all__ = ["Choice", "Model", "Violated", "require"]

Choice = tuple[str, str]
"""An event, and the process or message that it happens to."""


LATE = ("late", "")
"""A replaced coordinator executes its last decisions. This event may never happen."""


class Model:
    """A model of one job, from the start of its coordinator to the end of the job.

    Args:
        config: the job's configuration.
        engines: number of engines.
        deaths: how many processes may die, any of them at any time; a trainer may also be replaced while it runs.
        change: new `spec.pipeline`, which the user may set at any time.
        losses: how many faults the server may have. It loses or repeats an acknowledged message, or it loses the end of
            the ledger and the coordinator is replaced; the old coordinator may then still append to the ledger.
        progress: how many times engines may publish the progress of a trajectory, at any time.
        zombies: whether a replaced process may continue to run: a coordinator that has stored its records, or a gang.
        poison: a group whose siblings are never generated: each engine that starts one dies of it, and another follows.
        slots: how many trajectories an engine says that it generates at once.
        restless: whether heartbeats and reports come at any time, or only if nothing else can happen.
    """

    def __init__(
        self,
        config: JobConfig,
        *,
        engines: int = 2,
        deaths: int = 0,
        change: PipelineSpec | None = None,
        losses: int = 0,
        progress: int = 0,
        zombies: bool = True,
        restless: bool = False,
        poison: str = "",
        slots: int = 1,
    ) -> None:
        self.config = config
        self.deaths = deaths
        self.change = change
        self.losses = losses
        self.publishing = progress
        self.zombies = zombies
        self.restless = restless
        self.poison, self.slots = poison, slots
        self.harmless_deaths = deaths
        self.lossy = losses > 0
        self.ledger: list[RecordBatch] = []
        self.digests: list[str] = []
        """Of each batch in the ledger, unique: a batch that takes the place of a lost one has another."""
        self.void: set[int] = set()
        """Indices of the batches in the ledger that a replaced coordinator appended."""
        self.truth = Truth()
        self.engines = {f"e{n}.x": ModelEngine(slots=slots) for n in range(engines)}
        self.dead: list[str] = []
        self.starting: list[str] = []
        """Successors of engines that died of poison."""
        self.trainer = ModelTrainer()
        self.zombie: ModelTrainer | None = None
        """A trainer gang that was replaced while it was still running."""
        self.announced: Announce | None = None
        self.manifests: dict[str, StepCommitted] = {}
        self.payloads: dict[int, Summary] = {}
        self.absences: dict[int, PayloadAbsent | EngineDrained | SiteMarkSeen] = {}
        """What engines say of themselves in the stream of payloads, and marks that come by way of a site."""
        self.rewards: dict[int, RewardsSeen | RewardsComplete] = {}
        self.progress: dict[str, StoredProgress] = {}
        self.delayed_progress: list[tuple[str, StoredProgress]] = []
        """Progress that engines published before they died, and that has not arrived yet."""
        self.answers: list[ProgressFound | ProgressListed | MarkFound] = []
        """Answers to the coordinator's queries, not yet read."""
        self.seen = [0, 0]
        """Sequences up to which the coordinator has read payloads and rewards."""
        self.events: list[Observation] = []
        self.late: list[tuple[int, str, Action]] = []
        """Actions, with their epoch, of a replaced coordinator that has not executed them yet."""
        self.sequence = self.appended = 0
        self.instances = 0
        self.replaced: Planner | None = None
        """The planner of a coordinator that does not know yet that it was replaced."""
        self.finished = ""
        self.stored: int | None = None
        """How many records of a dying coordinator's last decision are stored; None for all."""
        self._start_coordinator()
        self._say(TrainerReady(1, 0, None))

    # ------------------------------------------------------------------------------------------ what may happen

    def choices(self) -> list[Choice]:
        """Return all events without faults that can happen next; [] if the job has finished or is stuck."""
        if self.finished:
            return []
        found = list(self._coordinator_choices())
        for name, engine in self.engines.items():
            if engine.inbox:
                found.append(("deliver", name))
            if engine.follows(self.announced):
                found.append(("swap", name))
            found += [
                (
                    "succumb" if group_of(trajectory) == self.poison else "finish",
                    f"{name} {trajectory}@{attempt}",
                )
                for trajectory, attempt in engine.running
            ]
            if self.publishing:
                found += [
                    ("publish", f"{name} {key[0]}@{key[1]}")
                    for key, run in engine.running.items()
                    if self.progress.get(key[0]) != progress_of(*key, run)
                ]
        found += [("start", name) for name in self.starting]
        if self.trainer.inbox:
            found.append(("train", ""))
        if self.zombie is not None and self.zombie.inbox:
            found.append(("train replaced", ""))
        if self.change is not None:
            found.append(("change", ""))
        found += [("expire", name) for name in self.dead if name in self.planner.state.generating]
        found += [("deliver progress", str(place)) for place in range(len(self.delayed_progress))]
        if self.late:
            found.append(LATE)
        if self.lossy and (self.restless or not found):
            found += [("beat", ""), ("report", "")]
            found += [("report late", "")] if self.zombie is not None else []
        return found

    def mishaps(self) -> list[Choice]:
        """Return all faults that can happen next."""
        found: list[Choice] = []
        if self.finished:
            return found
        if self.deaths:
            if self.zombies:
                found += [(f"{what} and die", "") for what, _ in self._coordinator_choices()]
            if self.lossy:  # a decision's records may be several messages
                found += [
                    (f"{what} and die", str(stored))
                    for what, _ in self._coordinator_choices()
                    for stored in range(1, 5)
                ]
            if len(self.engines) > 1:
                found += [("die", name) for name in self.engines]
                found += [("drain", name) for name in self.engines if self.publishing]
            found += [("die", "coordinator"), ("die", "trainer")]
            found += [("freeze", "")] if self.zombies else []
        if self.losses:
            found += self._losses()
        return found

    def _coordinator_choices(self) -> Iterator[Choice]:
        if self._next(self.payloads | self.absences, 0):
            yield "read payload", ""
        if self._next(self.rewards, 1):
            yield "read reward", ""
        if self.events:
            yield "read event", ""
        if self.answers:
            yield "read answer", ""

    def _losses(self) -> Iterator[Choice]:
        yield from (("lose payload", str(sequence)) for sequence in self.payloads | self.absences)
        yield from (("lose reward", str(sequence)) for sequence in self.rewards if sequence > self.seen[1])
        yield from (("lose progress", trajectory) for trajectory in self.progress)
        yield from (("lose work", name) for name, engine in self.engines.items() if engine.inbox)
        if self.announced is not None and self.announced.version:
            yield "lose announcement", ""
        if self.events:
            yield "lose event", ""
            yield "repeat event", ""
        if self.trainer.inbox:
            yield "lose training", ""
            yield "repeat training", ""
        yield from (("cut", str(messages)) for messages in range(1, min(4, len(self.ledger))))
        yield "cut", str(len(self.ledger))
        if self.replaced is not None:
            yield "write late", ""

    def do(self, choice: Choice) -> None:
        """Execute an event and check the invariants.

        Raises:
            Violated: an invariant does not hold any more.
        """
        what, whom = choice
        if what.endswith(" and die"):
            self.deaths -= 1
            self.stored = int(whom) if whom else None
            self._coordinate(what.removesuffix(" and die"), dies=True)
            self._restart_coordinator()
        elif what.startswith("read "):
            self._coordinate(what, dies=False)
        elif what == "die":
            self.deaths -= 1
            self._die(whom)
        elif what == "succumb":
            self._succumb(*whom.split())
        elif what == "start":
            self.starting.remove(whom)
            self.engines[whom] = ModelEngine(slots=self.slots)
            self._signal(whom)
        elif what == "drain":
            self.deaths -= 1
            self._drain(whom)
        elif what == "publish":
            self.publishing -= 1
            self._publish(whom)
        elif what == "deliver progress":
            trajectory, progress = self.delayed_progress.pop(int(whom))
            self.progress[trajectory] = progress
        elif what == "freeze":
            self.deaths -= 1
            self.zombie = self.trainer
            self._die("trainer")
        elif what == "train replaced":
            assert self.zombie is not None
            self._train(self.zombie, self.zombie.inbox.pop(0))
        elif what.startswith(("lose ", "repeat ", "cut", "write ")):
            self.losses -= 1
            self._lose(what, whom)
        elif what == "beat":
            self._beat()
        elif what == "report":
            self.trainer.report(self._say)
        elif what == "report late":
            assert self.zombie is not None
            self.zombie.report(self._say)
        elif what == "change":
            change, self.change = self.change, None
            assert change is not None
            spec = self.config.spec.model_copy(update={"pipeline": change})
            self.config = self.config.model_copy(update={"spec": spec})
            self._observe(PipelineChanged(change))
        elif what == "late":
            actions, self.late = self.late, []
            for epoch, ledger, action in actions:
                if not isinstance(action, FindProgress | ListProgress):  # the answer would reach nobody
                    self._act(action, epoch, ledger)
        elif what == "deliver":
            self._deliver(whom)
        elif what == "swap":
            assert self.announced is not None
            self.engines[whom].swap(self.announced, whom, self._say)
            self._signal(whom)
        elif what == "finish":
            self._finish(whom)
        elif what == "train":
            self._train(self.trainer, self.trainer.inbox.pop(0))
        elif what == "expire":
            self._expire(whom)
        self.truth.check(self.planner.state, self.engines)
        self._check_quarantine()

    # ------------------------------------------------------------------------------------------ the coordinator

    def _next(self, stream: dict[int, Any], reader: int) -> int:
        return min((sequence for sequence in stream if sequence > self.seen[reader]), default=0)

    def _coordinate(self, what: str, *, dies: bool) -> None:
        """Let the coordinator read the next message of a kind; `dies`: it dies after storing records, before acting."""
        if what == "read payload":
            sequence = self.seen[0] = self._next(self.payloads | self.absences, 0)
            if (absence := self.absences.get(sequence)) is not None:
                self._observe(absence, dies=dies)
            else:
                self._observe(PayloadSeen(sequence, (self.payloads[sequence],)), dies=dies)
        elif what == "read reward":
            sequence = self.seen[1] = self._next(self.rewards, 1)
            self._observe(self.rewards[sequence], dies=dies)
        elif what == "read answer":
            self._observe(self.answers.pop(0), dies=dies)
        else:
            event = self.events.pop(0)
            if not self._observe(event, dies=dies) or dies:
                self.events.insert(0, event)  # the coordinator acknowledges an event only after acting on it

    def _observe(self, observation: Observation, *, dies: bool = False) -> bool:
        """Let the coordinator decide on an observation; False if it was replaced, and a new one has started."""
        try:
            decision = self.planner.decide([observation], 0.0)
        except Fenced:
            self._restart_coordinator()
            return False
        self._perform(decision, dies=dies)
        return True

    def _perform(self, decision: Any, *, dies: bool = False) -> None:
        records = decision.records[: self.stored] if dies else decision.records
        if records:
            self._append(RecordBatch(self.planner.state.writer, records))
            for record in records:
                self.truth.observe(record)
                if isinstance(record, StepCommitted):
                    require(
                        record.ledger in self.digests, f"[ledger] version {record.version} names a lost one"
                    )
        if dies and len(records) < len(decision.records):
            return  # the coordinator dies after storing a part of them
        epoch = self.planner.epoch
        if dies:
            late = ((epoch, self._digest(action), action) for action in decision.actions)
            self.late = [*self.late, *late]
            return
        for action in decision.actions:
            self._act(action, epoch, self._digest(action))

    def _append(self, batch: RecordBatch) -> None:
        self.ledger.append(batch)
        self.appended += 1
        self.digests.append(str(self.appended))

    def _digest(self, action: Action) -> str:
        """The ledger's end, which the message of a micro-batch names; nobody reads that of others."""
        is_read = isinstance(action, SendToTrainer) and isinstance(action.message, MicroBatch)
        return self.digests[-1] if is_read else ""

    def _act(self, action: Action, epoch: int, ledger: str) -> None:
        match action:
            case SendToEngine() if action.engine in self.engines:
                self.engines[action.engine].send(epoch, action.items)
            case SendToTrainer(attempt=self.trainer.attempt):
                self.trainer.inbox.append(TrainerMessage(ledger, action.message))
            case SendToTrainer() if self.zombie is not None and action.attempt == self.zombie.attempt:
                self.zombie.inbox.append(TrainerMessage(ledger, action.message))
            case Announce():
                self.announced = action
            case DeletePayloads():
                for sequence in action.sequences:
                    self.payloads.pop(sequence, None)
                    self.absences.pop(sequence, None)
            case DeleteRewards():
                for sequence in action.sequences:
                    self.rewards.pop(sequence, None)
            case FindProgress():
                asked = zip(action.trajectories, action.attempts, strict=True)
                self.answers += [ProgressFound(t, a, self.progress.get(t)) for t, a in asked]
            case ListProgress():
                self.answers.append(ProgressListed(tuple(self.progress)))
            case DropProgress():
                for trajectory in action.trajectories:
                    self.progress.pop(trajectory, None)
            case RetireEngine():
                self.planner.context.liveness.retired.discard(action.engine)  # it reads of that at once
            case CheckRewards():
                self.sequence += 1
                self.rewards[self.sequence] = RewardsComplete(action.number, self.sequence)
            case _:
                pass

    def _start_coordinator(self) -> None:
        self.instances += 1
        self.planner = Planner(self.config)
        self.planner.state.replay(self.ledger)
        self.seen = [0, 0]
        self.answers = []
        self._perform(self.planner.start(f"c{self.instances}", 0.0))
        state = self.planner.state
        version, newest, over = state.version, state.commit.manifest, state.finished is not None
        proposals = tuple(p for p in self.manifests.values() if p.version > version)
        announced = self.announced.manifest if self.announced is not None else ""
        self._observe(StoresRead(proposals, announced))
        if not over and announced in self.manifests and self.manifests[announced].parent == newest:
            require(
                state.version > version, f"[restored] version {version + 1} was announced, and is given up"
            )
        for name in self.engines:
            self._signal(name)

    def _restart_coordinator(self) -> None:
        self.replaced = self.planner if self.lossy else None
        self._start_coordinator()

    def _die(self, whom: str) -> None:
        if whom == "coordinator":
            self._restart_coordinator()
        elif whom == "trainer":
            self.trainer = ModelTrainer(self.trainer.attempt + 1)
            self._say(TrainerReady(self.trainer.attempt, 0, None))
        else:
            engine = self.engines.pop(whom)
            self.dead.append(whom)
            if self.publishing:
                self.publishing -= 1
                self.delayed_progress += [
                    (key[0], progress_of(*key, run)) for key, run in engine.running.items()
                ]

    def _succumb(self, name: str, request: str) -> None:
        """An engine dies of poison, and what watched it says so."""
        self._die(name)
        self.starting.append(f"e{len(self.engines) + len(self.dead) + len(self.starting)}.x")
        self._say(EngineDied(name, 139, request))

    def apart(self) -> set[str]:
        """Ids of what is generated beside nothing else."""
        early = early_trial.members(self.planner.context)
        return {*self.planner.state.quarantined, *(sibling.id for sibling in early)}

    def _check_quarantine(self) -> None:
        context, state, apart = self.planner.context, self.planner.state, self.apart()
        tried_at = set()
        for name, ids in state.generating.items():
            quarantined = [t in apart for t in ids]
            require(
                all(quarantined) or not any(quarantined), f"[apart] {name} has quarantined and other work"
            )
            tried_at |= {name} if any(quarantined) else set()
        require(len(tried_at) < 2 or self.lossy, "[apart] two cohorts are tried at once")
        if state.finished is not None:
            return
        bound = {group_of(t) for t in state.survivors}  # their siblings stay together
        waiting = [
            s
            for s in state.siblings()
            if s.state is State.RESERVED and group_of(s.id) not in bound and not context.lookups.is_pending(s)
            if context.admission.admits(state, context.spec, state.buffers.buffer_of(group_of(s.id)))
        ]
        idle = [v for v in context.liveness.engines.values() if v.room(context.prefetch) > 0]
        kept = len([t for t in apart if t not in state.generating])
        idle = [v for v in idle if v.engine not in tried_at and not v.stuck]
        require(
            not waiting or len(idle) <= (1 if kept and not tried_at else 0),
            "[idle] other work waits for what is quarantined",
        )

    def _drain(self, name: str) -> None:
        """Stop an engine gracefully: it publishes the progress of everything that it generates."""
        signal = replace(self.engines[name].signal(name), draining=True)
        self._observe(SignalSeen(name, signal))
        for key, run in self.engines.pop(name).running.items():
            self.progress[key[0]] = progress_of(*key, run)
        self.dead.append(name)
        self.sequence += 1
        self.absences[self.sequence] = EngineDrained(self.sequence, name)
        self._say(EngineGone(name))

    def _publish(self, whom: str) -> None:
        name, _, request = whom.partition(" ")
        trajectory, _, attempt = request.partition("@")
        key = trajectory, int(attempt)
        self.progress[trajectory] = progress_of(*key, self.engines[name].running[key])

    def _say(self, event: Observation) -> None:
        self.events.append(event)

    # ------------------------------------------------------------------------------------------ losses

    def _lose(self, what: str, whom: str) -> None:
        match what:
            case "lose payload":
                self.payloads.pop(int(whom), None)
                self.absences.pop(int(whom), None)
            case "lose reward":
                del self.rewards[int(whom)]
            case "lose progress":
                del self.progress[whom]
            case "lose work":
                self.engines[whom].inbox.pop(0)
            case "lose announcement":
                self.announced = None
            case "lose event":
                self.events.pop(0)
            case "repeat event":
                self._observe(self.events[0])
            case "lose training":
                self.trainer.inbox.pop(0)
            case "repeat training":
                self.trainer.inbox.append(self.trainer.inbox[0])
            case "cut":
                self._cut(int(whom))
            case "write late":
                assert self.replaced is not None
                drained = [EngineDrained(self.sequence, name) for name in self.engines]
                decision = self.replaced.decide(drained, 0.0)
                self.void.add(len(self.ledger))
                self._append(RecordBatch(self.replaced.state.writer, decision.records))
                self.replaced = None

    def _cut(self, messages: int) -> None:
        """The ledger's server dies and loses its last messages; a new coordinator starts."""
        del self.ledger[-messages:], self.digests[-messages:]
        self.void = {place for place in self.void if place < len(self.ledger)}
        self.truth.account = LedgerAccount()
        for place, batch in enumerate(self.ledger):
            for record in batch.records if place not in self.void else ():
                self.truth.observe(record)
        self._restart_coordinator()

    def _beat(self) -> None:
        """Let heartbeats arrive and time pass until the coordinator repeats its requests and checks."""
        for name in self.engines:
            self._signal(name)
        context = self.planner.context
        for name in sorted(context.state.generating.keys() - self.engines.keys()):
            context.liveness.leases[name] = LEASE_HEARTBEATS  # the lease ends
        for view in context.liveness.engines.values():
            view.heartbeats_behind = RESEND_HEARTBEATS
        for key in [(t, context.state.attempt(t)) for t in context.state.unscored]:
            context.score_checks.waiting[key] = SCORE_HEARTBEATS
        context.liveness.heartbeats = -1
        self._observe(OwnHeartbeat())
        self.planner.context.liveness.leases = {}

    def _expire(self, name: str) -> None:
        """End a dead engine's lease."""
        context = self.planner.context
        if name not in context.liveness.leaving:
            self._observe(SignalSeen(name, None))
            return
        context.liveness.leases = {name: LEASE_HEARTBEATS}
        for view in context.liveness.engines.values():
            view.heartbeats_behind = 0
        context.score_checks.waiting, context.liveness.heartbeats = {}, 0
        self._observe(OwnHeartbeat())
        self.planner.context.liveness.leases = {}

    # ------------------------------------------------------------------------------------------ engines

    def _signal(self, name: str) -> None:
        self._observe(SignalSeen(name, self.engines[name].signal(name)))

    def _deliver(self, name: str) -> None:
        lacking = self.engines[name].deliver(name, self.progress, self._say)
        if lacking is not None:
            self.sequence += 1
            self.absences[self.sequence] = PayloadAbsent(self.sequence, name, *lacking)

    def _finish(self, whom: str) -> None:
        name, _, request = whom.partition(" ")
        trajectory, _, attempt = request.partition("@")
        key = trajectory, int(attempt)
        run = self.engines[name].running.pop(key)
        digest = f"{trajectory}/{attempt}/{name}"
        summary = Summary(*key, run.span, 1, 1, digest)
        self.truth.payloads[digest] = summary, run.made_by
        self.sequence += 1
        self.payloads[self.sequence] = summary
        self.sequence += 1
        result = RewardResult(*key, digest, float(sum(map(ord, trajectory)) % 2), {}, "d")
        self.rewards[self.sequence] = RewardsSeen(self.sequence, (result,))

    # ------------------------------------------------------------------------------------------ the trainer

    def _train(self, trainer: ModelTrainer, message: TrainerMessage) -> None:
        end = trainer.take(message, self.payloads, self._say, self._durable)
        if isinstance(end, Fence):
            require(trainer is self.zombie, "[fence] the newest attempt is asked to stop")
            self.zombie = None
        elif isinstance(end, Finish) and trainer is self.trainer:
            self.finished = "Succeeded" if end.failure is None else "Failed"

    def _durable(self, proposal: StepCommitted, read: dict[str, Summary]) -> None:
        self.manifests[proposal.manifest] = proposal
        self.truth.fed[proposal.manifest] = read

    # ------------------------------------------------------------------------------------------ for searches

    def fork(self) -> Model:
        """Return an independent copy of the model."""
        copy: Model = fork(self)
        return copy

    def replays(self) -> None:
        """Check that replaying the ledger gives the coordinator's state."""
        rebuilt = JobState()
        rebuilt.replay(self.ledger)
        require(state_key(rebuilt) == state_key(self.planner.state), "[fold] the ledger says something else")

    def gave_up_nothing_harmless(self) -> None:
        """Check that only poison was given up, unless other deaths can have fallen upon one trajectory that often."""
        given_up = self.truth.account.given_up
        if self.harmless_deaths < self.config.spec.pipeline.max_attempts:
            require(given_up <= {self.poison}, f"[poison] {given_up} were given up")

    def key(self) -> int:
        """Return a hash that is equal for models with the same possible futures, whatever their engines' names."""
        context = self.planner.context
        engines = {name: self._engine_key(name) for name in self.engines}
        order = sorted(engines, key=engines.__getitem__)
        names = {name: str(place) for place, name in enumerate(order)}
        names |= {name: f"dead {place}" for place, name in enumerate(self.dead)}
        where = {s: (p.trajectory, p.attempt, p.digest.rpartition("/")[0]) for s, p in self.payloads.items()}
        return hash(
            (
                state_key(context.state, names),
                context.trainer_link.accepted,
                context.trainer_link.resumed,
                context.trainer_link.checkpoint_asked,
                frozenset(
                    (names.get(e), v.version, v.assigned, v.draining)
                    for e, v in context.liveness.engines.items()
                ),
                frozenset((key, tuple(early)) for key, early in context.messages.early_rewards.items()),
                context.score_checks.asked,
                tuple(context.lookups.pending.items()),
                tuple(context.lookups.found.items()),
                tuple(map(names.get, context.liveness.leaving)),
                context.lookups.listed_version,
                tuple(context.cohorts.waiting),
                context.cohorts.other_work_first,
                context.cohorts.awaited_since is None,
                context.cohorts.just_begun,
                context.cohorts.early,
                len(self.starting),
                tuple(self.progress.items()),
                tuple(self.delayed_progress),
                tuple(self.answers),
                self.publishing,
                tuple(engines[name] for name in order),
                tuple(names[name] for name in self.dead),
                trainer_key(self.trainer, where),
                None if self.zombie is None else trainer_key(self.zombie, where),
                self.change is None,
                self.announced,
                tuple(p.manifest for p in self.manifests.values() if p.version > context.state.version),
                tuple((w, self.payloads[s].span, s <= self.seen[0]) for s, w in where.items()),
                tuple(
                    (a.site, a.number, s <= self.seen[0])
                    if isinstance(a, SiteMarkSeen)
                    else (
                        None if isinstance(a, EngineDrained) else (a.trajectory, a.attempt),
                        names.get(a.engine),
                        s <= self.seen[0],
                    )
                    for s, a in self.absences.items()
                ),
                tuple(
                    (r.number, "")
                    if isinstance(r, RewardsComplete)
                    else (r.results[0].trajectory, r.results[0].attempt, s <= self.seen[1])
                    for s, r in self.rewards.items()
                ),
                tuple(message_key(event, where) for event in self.events),
                tuple(map(repr, self.late)),
                len(self.ledger) if self.losses else 0,
                self.replaced is None,
                self.deaths,
                self.losses,
                self.finished,
            )
        )

    def _engine_key(self, name: str) -> tuple[Any, ...]:
        engine = self.engines[name]
        view = self.planner.context.liveness.engines.get(name)
        return (
            engine.version,
            engine.manifest,
            engine.epoch,
            tuple(map(repr, engine.inbox)),
            tuple(map(repr, engine.held)),
            tuple((key, run) for key, run in sorted(engine.running.items(), key=lambda item: item[0])),
            tuple(sorted(engine.taken)),
            tuple(engine.made.items()),
            (-1, -1) if view is None else (view.version, view.assigned),
        )
