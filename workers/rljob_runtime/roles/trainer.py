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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_core.config import JobConfig
from rljob_core.errors import (
    Fenced,
    JobFailed,
    ProtocolViolation,
    StalenessExceeded,
    StopRequested,
    WeightsRejected,
)
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
from rljob_core.ports import (
    Channel,
    Delivery,
    MessageStore,
    TrainerBackend,
    TrainingSample,
    WeightManifest,
    WeightStore,
)
from rljob_core.records import FED, FedMicroBatch, FedTrajectory, StepCommitted
from rljob_core.trajectory import Trajectory
from rljob_core.weights import deletable
from rljob_runtime.messaging.trajectories import Location, TrajectoryStore
from rljob_runtime.roles.coordinator import publish_event
from rljob_runtime.roles.rollback import whole_before
from rljob_runtime.training.checkpoints import CheckpointStore

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""Without a message for so long, the trainer says again where it stands: what it was told may be lost."""
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
        self._missing: PayloadMissing | None = None
        self._trajectories = TrajectoryStore(store)
        log_folder.mkdir(parents=True, exist_ok=True)
        self._consumed_log = log_folder / f"attempt-{attempt}.jsonl"
        self._saved: tuple[int, str] | None = None  # version and key of the newest checkpoint
        self._stored: list[WeightManifest] = []  # versions whose tensors are there
        self._swept = False

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
                fetch = asyncio.create_task(queue.fetch(messages=16, max_bytes=4 << 20, timeout=IDLE_SECONDS))
                await asyncio.wait({fetch, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not fetch.done():
                    fetch.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await fetch
                    break
                if not fetch.result():
                    await self._report()
                for delivery in fetch.result():
                    if stop.is_set():
                        break
                    if await self._handle(delivery):
                        return
            await self._save_checkpoint()
            raise StopRequested("stopped before the job was over")
        finally:
            stopping.cancel()

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
                self._step = self._missing = None
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
        if self._missing is not None:
            await publish_event(self._store, self._missing)
        fed = len(self._step.fed) if self._step is not None else 0
        await publish_event(
            self._store,
            TrainerReady(self._attempt, self._epoch, self._version, self._proposal, self._resumed, fed),
        )

    # ------------------------------------------------------------------------------------------ a step

    async def _resume(self, work: Resume) -> None:
        self._resumed = work.number
        self._missing = None
        if self._version != work.version or self._manifest != work.manifest:
            await asyncio.to_thread(self._load, work)
            if self._saved is not None and self._saved[1] != work.checkpoint:
                await self._tell_checkpoint()
        elif self._proposal is not None:
            await self._committed(work.version)
        self._proposal = None
        if work.last:
            await self._save_checkpoint()
            await self._tell_checkpoint()
        await self._begin(work.version)
        log.info("attempt %d trains from version %d (epoch %d)", work.attempt, work.version, work.epoch)

    def _load(self, work: Resume) -> None:
        try:
            manifest = None if work.key is None else self._weights.manifest(work.key)
            self._backend.load(None if manifest is None else self._weights.read(manifest))
        except WeightsRejected as error:
            raise JobFailed(f"{error}. {self._way_back(work)}") from error
        self._saved = self._checkpoint(work)
        self._backend.load_state(
            None if self._saved is None else str(self._checkpoints.folder(self._saved[1]))
        )
        self._version, self._manifest = work.version, work.manifest
        self._stored = self._weights.manifests()

    def _checkpoint(self, work: Resume) -> tuple[int, str] | None:
        """Version and key of the state to go on from."""
        if work.checkpoint is None or work.checkpoint_version is None:
            return None
        if work.checkpoint in self._checkpoints.keys():  # noqa: SIM118  a method
            return work.checkpoint_version, work.checkpoint
        # A ledger that lost its end names one that was removed since for newer ones.
        newest = self._checkpoints.newest(work.version)
        instead = "a fresh optimizer" if newest is None else newest[1]
        log.warning("the checkpoint %s is gone: going on from %s", work.checkpoint, instead)
        return newest

    def _way_back(self, work: Resume) -> str:
        """What the user can do about committed weights that do not verify."""
        whole = [0, *whole_before(self._weights, work.manifest, work.version)]
        return (
            f"Versions that do verify: {', '.join(map(str, whole))} (0 is the initial model). Going back gives up what "
            f"came after: rljob run … --resume --from-version {whole[-1]}"
        )

    def _prune(self, committed: int) -> None:
        """Delete weights that neither the bound nor a recovery can ask for, nor others rest on; manifests stay."""
        kept = (
            self._config.spec.pipeline.bound
            + RECOVERY_VERSIONS
            + (self._config.spec.weights.keep_versions or 0)
        )
        if not self._swept:  # what the attempt before this one was writing is committed by now, by this one
            self._weights.sweep(committed)
            self._swept = True
        for key in deletable(self._stored, needed_from=committed - kept):
            self._weights.delete(key)
            self._stored = [manifest for manifest in self._stored if manifest.key != key]

    async def _begin(self, version: int) -> None:
        await asyncio.to_thread(self._backend.begin_step, version)
        self._step = OpenStep([], idle_since=time.monotonic())

    async def _train(self, work: MicroBatch) -> None:
        if self._proposal is not None:  # the next step's first micro-batch: the proposal was committed
            await self._committed(self._proposal.version)
            self._proposal = None
            self._open_step.idle_since = time.monotonic()
        samples = await self._payloads(work)
        if samples is None:
            self._step = None  # the step starts over without them: nothing until the Resume that says so
            return
        step, started = self._open_step, time.monotonic()
        step.waiting += started - step.idle_since
        self._check_staleness(work, samples)
        self._log_consumed(work, samples)
        await asyncio.to_thread(self._backend.accumulate, samples)
        step.fed.append(tuple(s.trajectory.id for s in samples))
        step.idle_since = time.monotonic()
        step.training += step.idle_since - started
        if work.last:
            await self._finish_step(work)

    async def _committed(self, version: int) -> None:
        """Save the state after a step, if it is due, and delete weights: not before nobody can revoke it."""
        if version % self._config.spec.trainer.checkpoint.every_steps == 0:
            await self._save_checkpoint()
        await asyncio.to_thread(self._prune, version)

    async def _payloads(self, work: MicroBatch) -> list[TrainingSample] | None:
        found = await self._trajectories.get([Location(i.sequence, i.index, i.digest) for i in work.items])
        missing = tuple(i.trajectory for i, t in zip(work.items, found, strict=True) if not _matches(i, t))
        if missing:
            log.warning("PayloadMissing: %s", ", ".join(missing))
            self._missing = PayloadMissing(work.attempt, work.epoch, work.step, missing)
            await publish_event(self._store, self._missing)
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

    def _log_consumed(self, work: MicroBatch, samples: Sequence[TrainingSample]) -> None:
        fed = tuple(
            FedTrajectory(s.trajectory.id, s.trajectory.attempt, s.item.digest, s.trajectory.span)
            for s in samples
        )
        line = FED.dump_json(FedMicroBatch(work.step, work.micro_batch, work.attempt, work.epoch, fed))
        with self._consumed_log.open("ab") as file:  # a role that ends at any moment leaves nothing open
            file.write(line + b"\n")

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
        await self._begin(proposal.version)

    def _write_weights(self, work: MicroBatch, fed: tuple[tuple[str, ...], ...]) -> StepCommitted:
        version = work.step + 1
        proposal = StepCommitted(
            version=version,
            parent=self._manifest,
            attempt=work.attempt,
            epoch=work.epoch,
            micro_batches=fed,
            max_staleness=work.max_staleness,
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
        self._stored.append(manifest)
        return replace(proposal, manifest=manifest.digest)

    # ------------------------------------------------------------------------------------------ checkpoints

    async def _save_checkpoint(self) -> None:
        """Save the state after the newest finished step, unless it is saved already."""
        version = self._version
        if not version or (self._saved is not None and self._saved[0] == version):
            return
        key = await asyncio.to_thread(
            self._checkpoints.write,
            version=version,
            manifest=self._manifest,
            attempt=self._attempt,
            save=self._backend.save,
        )
        self._saved = version, key
        await self._tell_checkpoint()

    async def _tell_checkpoint(self) -> None:
        if self._saved is not None:
            version, key = self._saved
            manifest = (await asyncio.to_thread(self._checkpoints.info, key)).manifest
            await publish_event(self._store, CheckpointWritten(self._attempt, version, manifest, key))


def _matches(item: TrainingItem, trajectory: Trajectory | None) -> bool:
    return trajectory is not None and (trajectory.id, trajectory.attempt) == (item.trajectory, item.attempt)
