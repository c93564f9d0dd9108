"""The engine and the trainer of the model in `interleavings`; they guarantee no more than the real ones' contracts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rljob_core.actions import Announce, Observation, StoredProgress, Summary
from rljob_core.messages import (
    RELEASED,
    Cancel,
    CheckpointWritten,
    EngineSignal,
    EngineWork,
    Fence,
    Finish,
    Generate,
    GenerationEnded,
    Hello,
    MicroBatch,
    PayloadMissing,
    Release,
    Resume,
    StepProposed,
    StepStats,
    TrainerMessage,
    TrainerReady,
)
from rljob_core.records import Inherited, StepCommitted
from rljob_core.trajectory import VersionSpan

Key = tuple[str, int]
"""A trajectory and its attempt."""


@dataclass(frozen=True)
class Run:
    """A trajectory being generated: since which version, to which, by which weights, and what was asked for."""

    span: VersionSpan
    weights: frozenset[tuple[int, str]]
    min_version: int
    inherited: Inherited | None = None

    @property
    def made_by(self) -> frozenset[str]:
        return frozenset(manifest for _, manifest in self.weights)


def progress_of(trajectory: str, attempt: int, run: Run) -> StoredProgress:
    """What an engine publishes of it; the same again is the same message."""
    weights = tuple(sorted(run.weights))
    digest = f"{trajectory}@{attempt} {run.span} {weights}"
    return StoredProgress(Inherited(attempt, 1, run.span, 0, digest), weights)


@dataclass
class ModelEngine:
    """An engine instance with as many slots as it is given work for."""

    version: int = 0
    manifest: str = ""
    epoch: int = 0
    pool: str = "a"
    site: str = ""
    slots: int = 1
    """What it says; it generates all that it is sent at once."""
    inbox: list[tuple[int, EngineWork]] = field(default_factory=list)
    """With the epoch of who sent it, where that matters."""
    held: list[Generate] = field(default_factory=list)
    made: dict[Key, StoredProgress] = field(default_factory=dict)
    """What it has yet to go on from."""
    running: dict[Key, Run] = field(default_factory=dict)
    taken: set[Key] = field(default_factory=set)

    def has(self, work: Generate) -> bool:
        return work in self.held or (work.trajectory, work.attempt) in self.running

    def send(self, epoch: int, items: tuple[EngineWork, ...]) -> None:
        for item in items:
            matters = isinstance(item, Generate) and item.inherited is not None
            self.inbox.append((epoch if matters else 0, item))

    def deliver(
        self, name: str, progress: dict[str, StoredProgress], say: Callable[[Observation], None]
    ) -> Key | None:
        """Take the next message; what it was sent and has had, if that is it."""
        epoch, work = self.inbox.pop(0)
        if isinstance(work, Cancel):
            named = set(zip(work.trajectories, work.attempts, strict=True))
            self.held = [w for w in self.held if (w.trajectory, w.attempt) not in named]
            self.made = {k: m for k, m in self.made.items() if k not in named}
            self.running = {k: r for k, r in self.running.items() if k not in named}
            self.taken |= named
            return None
        if isinstance(work, Release):
            for key in zip(work.trajectories, work.attempts, strict=True):
                if work.unless_begun:  # what it holds it has not begun
                    if any((w.trajectory, w.attempt) == key for w in self.held):
                        self.held = [w for w in self.held if (w.trajectory, w.attempt) != key]
                        self.made.pop(key, None)
                        say(GenerationEnded(name, *key, RELEASED, failure=False))
                elif (run := self.running.pop(key, None)) is not None:
                    progress[key[0]] = progress_of(*key, run)
                    say(GenerationEnded(name, *key, RELEASED, failure=False))
            return None
        key = (work.trajectory, work.attempt)
        if key in self.taken:
            return None if self.has(work) else key
        self.taken.add(key)
        if work.inherited is not None:
            there = progress.get(work.trajectory)
            if there is None or there.inherited != work.inherited or epoch < self.epoch:
                say(GenerationEnded(name, *key, "ProgressLost", failure=False))
                return None
            self.made[key] = there
        self.held.append(work)
        self.start()
        return None

    def start(self) -> None:
        for work in [w for w in self.held if w.min_version <= self.version]:
            self.held.remove(work)
            key = work.trajectory, work.attempt
            span, weights = VersionSpan(self.version, self.version), {(self.version, self.manifest)}
            if (made := self.made.pop(key, None)) is not None:
                assert made.inherited.span.max <= self.version, f"[order] {key} goes back to older weights"
                span, weights = span | made.inherited.span, weights | {*made.weights}
            self.running[key] = Run(span, frozenset(weights), work.min_version, work.inherited)

    def follows(self, announced: Announce | None) -> bool:
        """Whether it has yet to swap to these weights."""
        return (
            announced is not None
            and announced.epoch >= self.epoch
            and (announced.version, announced.manifest) != (self.version, self.manifest)
        )

    def swap(self, announced: Announce, name: str, say: Callable[[Observation], None]) -> None:
        """Use these weights from the next token on; what revoked ones began is given back."""
        revoked = announced.version <= self.version
        self.version, self.manifest, self.epoch = announced.version, announced.manifest, announced.epoch
        if revoked:
            for trajectory, attempt in self.running:
                say(GenerationEnded(name, trajectory, attempt, "Restarted", failure=False))
            self.running = {}
        for key, run in self.running.items():
            span = VersionSpan(run.span.min, self.version)
            self.running[key] = replace(run, span=span, weights=run.weights | {(self.version, self.manifest)})
        self.start()

    def signal(self, name: str) -> EngineSignal:
        held = len(self.held) + len(self.running)
        running = len(self.running)
        counts = (self.epoch, self.version, held, self.slots, running, 0, 0)
        return EngineSignal(name, self.pool, *counts, site=self.site)


@dataclass
class ModelTrainer:
    """A gang: `read` holds what it fed to backward in the open step, with the spans that the payloads had."""

    attempt: int = 1
    epoch: int = 0
    resumed: int = 0
    version: int | None = None
    manifest: str = ""
    proposal: StepCommitted | None = None
    missing: PayloadMissing | None = None
    checkpoint: int | None = None
    inbox: list[TrainerMessage] = field(default_factory=list)
    fed: list[tuple[str, ...]] | None = None
    read: dict[str, Summary] = field(default_factory=dict)

    def report(self, say: Callable[[Observation], None]) -> None:
        """Say where it stands."""
        if self.missing is not None:
            say(self.missing)
        fed = len(self.fed) if self.fed is not None else 0
        say(TrainerReady(self.attempt, self.epoch, self.version, self.proposal, self.resumed, fed))

    def take(
        self,
        given: TrainerMessage,
        payloads: dict[int, Summary],
        say: Callable[[Observation], None],
        durable: Callable[[StepCommitted, dict[str, Summary]], None],
    ) -> Finish | Fence | None:
        """Deal with one message; what ends it."""
        match message := given.work:
            case Hello() if message.epoch > self.epoch:
                self.epoch, self.resumed, self.fed, self.missing = message.epoch, 0, None, None
                self.report(say)
            case Resume(attempt=self.attempt, epoch=self.epoch) if message.number > self.resumed:
                self.resumed, self.proposal, self.missing = message.number, None, None
                if (self.version, self.manifest) != (message.version, message.manifest):
                    self.version, self.manifest = message.version, message.manifest
                    self.checkpoint = message.checkpoint_version
                self.fed, self.read = [], {}
                if message.last:
                    self.checkpoint = message.version
                    say(CheckpointWritten(self.attempt, message.version, message.manifest, "k"))
            case MicroBatch() if self.fed is not None and (
                message.attempt,
                message.epoch,
                message.resume,
                message.step,
                message.micro_batch,
            ) == (self.attempt, self.epoch, self.resumed, self.version, len(self.fed)):
                self._feed(message, given.ledger, payloads, say, durable)
            case Fence() | Finish():
                return message
        return None

    def _feed(
        self,
        message: MicroBatch,
        ledger: str,
        payloads: dict[int, Summary],
        say: Callable[[Observation], None],
        durable: Callable[[StepCommitted, dict[str, Summary]], None],
    ) -> None:
        assert self.fed is not None
        self.proposal = None
        found = {i.trajectory: payloads.get(i.sequence) for i in message.items}
        gone = [
            i.trajectory
            for i in message.items
            if (there := found[i.trajectory]) is None or there.digest != i.digest
        ]
        if gone:
            self.fed = None
            self.missing = PayloadMissing(self.attempt, self.epoch, message.step, tuple(gone))
            say(self.missing)
            return
        for item in message.items:
            there = found[item.trajectory]
            assert there is not None
            stale = message.step - there.span.min
            assert stale <= message.max_staleness, f"[bound] {item.trajectory} was fed too stale"
            self.read[item.trajectory] = there
        self.fed.append(tuple(i.trajectory for i in message.items))
        if not message.last:
            return
        version = message.step + 1
        digest = f"m{version}-{self.attempt}-{self.epoch}-{self.resumed}"
        self.proposal = StepCommitted(
            version,
            self.manifest,
            self.attempt,
            self.epoch,
            tuple(self.fed),
            message.max_staleness,
            "",
            digest,
            digest,
            ledger=ledger,
        )
        durable(self.proposal, dict(self.read))
        self.version, self.manifest, self.fed, self.read = version, digest, [], {}
        say(StepProposed(self.proposal, StepStats()))
