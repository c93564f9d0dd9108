"""The trainer role, rank 0: micro-batches in, gradient sums, one optimizer step, weights out, commit proposed.

Fenced by `(attempt, epoch)`: the gang's attempt from the operator, the writer epoch of the coordinator that it
works for. Order of a step's end (MECHANISMS §3a): tensors and manifest durable → proposal to the coordinator →
its ledger record → announcement; the next step's micro-batches arrive only after that.

What is fed to backward is first written to the trainer's own log, from the payloads' headers: the audit's witness.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_core.config import JobConfig
from rljob_core.errors import Fenced, JobFailed, ProtocolViolation, StalenessExceeded, Stopped
from rljob_core.messages import (
    TRAINER_WORK,
    CheckpointWritten,
    Fence,
    Finish,
    Hello,
    MicroBatch,
    PayloadMissing,
    Resume,
    StepProposed,
    TrainerReady,
    TrainingItem,
)
from rljob_core.ports import Channel, Delivery, MessageStore, TrainerBackend, TrainingSample, WeightStore
from rljob_core.records import FED, FedMicroBatch, FedTrajectory, StepCommitted
from rljob_core.trajectory import Trajectory
from rljob_runtime.checkpoint import CheckpointStore
from rljob_runtime.coordinator import publish_event
from rljob_runtime.trajectory_store import Location, TrajectoryStore

log = logging.getLogger(__name__)

RECOVERY_VERSIONS = 2
"""Kept besides those within the bound: an engine may be reading the version before the newest."""


@dataclass(slots=True)
class OpenStep:
    """The step in progress: what was fed, and where its seconds went."""

    fed: list[tuple[str, ...]]
    waiting: float = 0.0
    training: float = 0.0
    idle_since: float = 0.0


class Trainer:
    """Rank 0 of one gang; `run` returns when the job is over or `stop` is set (after saving a checkpoint)."""

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        weights: WeightStore,
        checkpoints: CheckpointStore,
        backend: TrainerBackend,
        *,
        attempt: int,
        log_folder: Path,
    ) -> None:
        self._config = config
        self._store = store
        self._weights = weights
        self._checkpoints = checkpoints
        self._backend = backend
        self._attempt = attempt
        self._epoch = 0
        self._version: int | None = None  # of the weights in memory
        self._manifest = ""  # its digest
        self._proposal: StepCommitted | None = None
        self._resumed = 0  # number of the Resume of this epoch that the open step follows
        self._step: OpenStep | None = None  # None until told to start, and after a payload was missing
        self._trajectories = TrajectoryStore(store)
        log_folder.mkdir(parents=True, exist_ok=True)
        self._witness = (log_folder / f"attempt-{attempt}.jsonl").open("ab")
        self._saved: int | None = None
        self._stored: deque[tuple[int, str]] = deque()  # versions whose tensors are there, oldest first

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Work until the coordinator says `Finish`, or `stop`.

        Raises:
            Stopped: `stop` ended it before the job was over (its checkpoint is saved).
            JobFailed: the job is over and did not succeed.
            Fenced: a newer attempt has taken over.
            StalenessExceeded: something past its bound was handed out (a bug; nothing was trained on it).
        """
        queue = await self._store.queue(
            Channel.TRAINING, f"trainer.{self._attempt}", name=f"trainer-{self._attempt}", ack_wait=10.0
        )
        await self._report()
        ready()
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                fetch = asyncio.create_task(queue.fetch(messages=16, max_bytes=4 << 20, timeout=5.0))
                await asyncio.wait({fetch, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not fetch.done():
                    fetch.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await fetch
                    break
                for delivery in fetch.result():
                    if stop.is_set():
                        break
                    if await self._handle(delivery):
                        return
            await self._save_checkpoint()
            raise Stopped("stopped before the job was over")
        finally:
            stopping.cancel()
            self._witness.close()

    async def _handle(self, delivery: Delivery) -> bool:
        """Deal with one message; whether the job is over."""
        work = TRAINER_WORK.validate_json(delivery.message.data)
        # A micro-batch can take longer than the acknowledgement timer; the lease on this gang is the operator's.
        await delivery.ack()
        match work:
            case Fence():
                raise Fenced(f"attempt {self._attempt} is over: attempt {work.attempt} trains")
            case Hello() if work.epoch > self._epoch:
                self._epoch = work.epoch
                self._resumed = 0
                self._step = None
                await self._report()
            case Resume() if self._mine(work.attempt, work.epoch) and work.number > self._resumed:
                await self._resume(work)
            case MicroBatch() if self._follows(work):
                await self._train(work)
            case Finish():
                if work.outcome != "Succeeded":
                    raise JobFailed(work.message or work.outcome)
                return True
        return False

    def _follows(self, work: MicroBatch) -> bool:
        """Whether it is the very next one: messages may come twice, and late."""
        return (
            self._mine(work.attempt, work.epoch)
            and self._step is not None
            and (work.resume, work.step, work.micro_batch)
            == (self._resumed, self._version, len(self._step.fed))
        )

    def _mine(self, attempt: int, epoch: int) -> bool:
        return (attempt, epoch) == (self._attempt, self._epoch)

    async def _report(self) -> None:
        await publish_event(
            self._store,
            TrainerReady(self._attempt, self._epoch, self._version, self._proposal, self._resumed),
        )

    # ------------------------------------------------------------------------------------------ a step

    async def _resume(self, work: Resume) -> None:
        self._resumed = work.number
        if self._version != work.version or self._manifest != work.manifest:
            await asyncio.to_thread(self._load, work)
        self._proposal = None
        if work.last:
            await self._save_checkpoint()
        await self._begin(work.version)
        log.info("attempt %d trains from version %d (epoch %d)", work.attempt, work.version, work.epoch)

    def _load(self, work: Resume) -> None:
        manifest = None if work.key is None else self._weights.manifest(work.key)
        self._backend.load(None if manifest is None else self._weights.read(manifest))
        self._backend.load_state(
            None if work.checkpoint is None else str(self._checkpoints.folder(work.checkpoint))
        )
        self._version, self._manifest = work.version, work.manifest
        self._saved = work.checkpoint_version
        self._stored = deque((m.version, m.key) for m in self._weights.manifests())

    def _prune(self, committed: int) -> None:
        """Delete weights that neither the bound nor a recovery can ask for; their manifests stay."""
        kept = (
            self._config.spec.pipeline.bound
            + RECOVERY_VERSIONS
            + (self._config.spec.weights.keep_versions or 0)
        )
        while self._stored and self._stored[0][0] < committed - kept:
            self._weights.delete(self._stored.popleft()[1])

    async def _begin(self, version: int) -> None:
        await asyncio.to_thread(self._backend.begin_step, version)
        self._step = OpenStep([], idle_since=time.monotonic())

    async def _train(self, work: MicroBatch) -> None:
        if self._proposal is not None:  # the next step's first micro-batch: the proposal was committed
            await asyncio.to_thread(self._prune, self._proposal.version)
            self._proposal = None
        samples = await self._payloads(work)
        if samples is None:
            self._step = None  # the step starts over without them: nothing until the Resume that says so
            return
        step, started = self._open_step, time.monotonic()
        step.waiting += started - step.idle_since
        self._check_staleness(work, samples)
        self._testify(work, samples)
        await asyncio.to_thread(self._backend.accumulate, samples)
        step.fed.append(tuple(s.trajectory.id for s in samples))
        step.idle_since = time.monotonic()
        step.training += step.idle_since - started
        if work.last:
            await self._finish_step(work)

    async def _payloads(self, work: MicroBatch) -> list[TrainingSample] | None:
        found = await self._trajectories.get([Location(i.sequence, i.index, i.digest) for i in work.items])
        missing = tuple(i.trajectory for i, t in zip(work.items, found, strict=True) if not _matches(i, t))
        if missing:
            log.warning("PayloadMissing: %s", ", ".join(missing))
            event = PayloadMissing(work.attempt, work.epoch, work.step, missing)
            await publish_event(self._store, event)
            return None
        return [TrainingSample(i, t) for i, t in zip(work.items, found, strict=True) if t is not None]

    @staticmethod
    def _check_staleness(work: MicroBatch, samples: Sequence[TrainingSample]) -> None:
        for sample in samples:
            staleness = work.step - sample.trajectory.span.min
            if staleness > work.max_staleness:
                raise StalenessExceeded(
                    f"{sample.trajectory.id}: staleness {staleness} exceeds the bound {work.max_staleness} "
                    f"of step {work.step}"
                )

    def _testify(self, work: MicroBatch, samples: Sequence[TrainingSample]) -> None:
        fed = tuple(
            FedTrajectory(s.trajectory.id, s.trajectory.attempt, s.item.digest, s.trajectory.span)
            for s in samples
        )
        line = FED.dump_json(FedMicroBatch(work.step, work.micro_batch, work.attempt, work.epoch, fed))
        self._witness.write(line + b"\n")
        self._witness.flush()

    @property
    def _open_step(self) -> OpenStep:
        if self._step is None:
            raise ProtocolViolation("no step is open")
        return self._step

    async def _finish_step(self, work: MicroBatch) -> None:
        step, started = self._open_step, time.monotonic()
        stats = await asyncio.to_thread(self._backend.finish_step)
        stepped = time.monotonic()
        proposal = await asyncio.to_thread(self._write_weights, work, tuple(step.fed))
        written = time.monotonic()
        self._version, self._manifest, self._proposal = proposal.version, proposal.manifest, proposal
        stats = replace(
            stats,
            seconds_waiting=step.waiting,
            seconds_training=step.training + stepped - started,
            seconds_publishing=written - stepped,
        )
        await publish_event(self._store, StepProposed(proposal, stats))
        if proposal.version % self._config.spec.trainer.checkpoint.every_steps == 0:
            await self._save_checkpoint()
        await self._begin(proposal.version)

    def _write_weights(self, work: MicroBatch, fed: tuple[tuple[str, ...], ...]) -> StepCommitted:
        version = work.step + 1
        proposal = StepCommitted(
            version=version,
            parent=self._manifest,
            attempt=work.attempt,
            epoch=work.epoch,
            micro_batches=fed,
            random_state=self._backend.random_state(),
            manifest="",
            key=f"v{version:08d}-a{work.attempt}-e{work.epoch}-r{work.resume}",
        )
        manifest = self._weights.write(
            version=version,
            parent=self._manifest,
            proposal=proposal,
            key=proposal.key,
            tensors=self._backend.tensors(),
        )
        self._stored.append((version, proposal.key))
        return replace(proposal, manifest=manifest.digest)

    # ------------------------------------------------------------------------------------------ checkpoints

    async def _save_checkpoint(self) -> None:
        """Save the state after the newest finished step, unless it is saved already."""
        version = self._version
        if not version or version == self._saved:
            return
        key = await asyncio.to_thread(
            self._checkpoints.write, version=version, attempt=self._attempt, save=self._backend.save
        )
        self._saved = version
        await publish_event(self._store, CheckpointWritten(self._attempt, version, key))


def _matches(item: TrainingItem, trajectory: Trajectory | None) -> bool:
    return trajectory is not None and (trajectory.id, trajectory.attempt) == (item.trajectory, item.attempt)
