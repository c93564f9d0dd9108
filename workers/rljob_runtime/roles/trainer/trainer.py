"""Rank 0 of a trainer: micro-batches in, gradient sums, one optimizer step, weights out, commit proposed.

A trainer is fenced by `(attempt, epoch)`: the gang's attempt, which the operator gives, and the writer epoch of the
coordinator that it works for. The end of a step has this order: the trainer's own log durable → tensors and manifest
durable → proposal to the coordinator → the coordinator's ledger record → its announcement to the engines. The next
step's micro-batches arrive only after that.

Before the backward pass the trainer writes what it trains on to a log of its own, from the payloads' headers, which
`rljob audit` compares with the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from rljob_core.config import JobConfig
from rljob_core.errors import Fenced, JobFailed, NotFinite, ProtocolViolation, StopRequested
from rljob_core.messages import (
    TRAINER_WORK,
    Fence,
    Finish,
    Hello,
    MicroBatch,
    OptimizerReset,
    PayloadMissing,
    Resume,
    StepProposed,
    TrainerReady,
)
from rljob_core.ports import Channel, Delivery, MessageStore, TrainerBackend, WeightStore
from rljob_core.records import StepCommitted
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.roles.trainer.checkpointing import Checkpointing
from rljob_runtime.roles.trainer.consumed_log import ConsumedLog
from rljob_runtime.roles.trainer.micro_batches import MicroBatchReader, check_staleness
from rljob_runtime.roles.trainer.poison import checked, in_micro_batch, in_step
from rljob_runtime.roles.trainer.policy_weights import PolicyWeights
from rljob_runtime.roles.trainer.training_metrics import TrainingMetrics
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.training.checkpoint_base import Checkpoints

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""Without a message for so long, the trainer reports its state again: the coordinator's answer may be lost."""


@dataclass(slots=True)
class OpenStep:
    """The step in progress.

    Attributes:
        fed: the trajectories of each micro-batch that was trained on.
        waiting: seconds without a micro-batch so far.
        training: seconds of forward and backward passes so far.
        idle_since: when the trainer began to wait, on the monotonic clock.
    """

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
        checkpoints: Checkpoints,
        backend: TrainerBackend,
        *,
        attempt: int,
        consumed_log: ConsumedLog,
        recorder: Recorder | None = None,
    ) -> None:
        """
        Args:
            config: of the job.
            store: the job's streams, open.
            weights: the job's weight store.
            checkpoints: where the optimizer's state is saved.
            backend: computes the steps, on all ranks of the gang.
            attempt: number of this gang; only the newest may train.
            consumed_log: of the trajectories that it trains on.
            recorder: takes the metrics.
        """
        self._config = config
        self._store = store
        self._backend = backend
        self._attempt = attempt
        self._epoch = 0
        self._metrics = TrainingMetrics(recorder, attempt=attempt)
        self._policy = PolicyWeights(config.spec, weights, backend)
        self._checkpoints = Checkpointing(
            store, checkpoints, backend, self._policy, attempt=attempt, metrics=self._metrics
        )
        self._reader = MicroBatchReader(
            store,
            max_tokens=config.spec.rollout.sampling.max_tokens,
            masks_truncated=config.spec.algorithm.truncated == "Mask",
        )
        self._consumed_log = consumed_log
        self._proposal: StepCommitted | None = None
        self._resumed = 0  # number of the Resume of this epoch that the open step follows
        self._step: OpenStep | None = None  # None until a Resume arrives, also after a payload was missing
        self._missing: PayloadMissing | None = None

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Train until the coordinator sends `Finish` or `stop` is set.

        Args:
            stop: set to save a checkpoint and end.
            ready: called once the trainer has reported to the coordinator.

        Raises:
            StopRequested: `stop` was set before the job was over; the checkpoint is saved.
            JobFailed: the job is over and did not succeed.
            Fenced: a newer attempt has taken over.
            StalenessExceeded: the coordinator sent a trajectory past its bound (a bug; it was not trained on).
        """
        queue = await self._store.queue(
            Channel.TRAINING, f"trainer.{self._attempt}", name=f"trainer-{self._attempt}", ack_wait=10.0
        )
        await self._report()
        ready()
        self._metrics.enter("waiting")
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
            await self._checkpoints.save()
            raise StopRequested("stopped before the job was over")
        finally:
            stopping.cancel()

    async def _handle(self, delivery: Delivery) -> bool:
        """Handle one message; True if the job is over."""
        work = TRAINER_WORK.validate_json(delivery.message.data)
        # At once: a micro-batch can take longer than the acknowledgement timer. The operator's lease on this gang,
        # not redelivery, covers the loss of a message.
        await delivery.ack()
        match work:
            case Fence():
                raise Fenced(f"attempt {self._attempt} is over: attempt {work.attempt} trains")
            case Hello() if work.epoch > self._epoch:
                self._epoch = work.epoch
                self._resumed = 0
                self._step = self._missing = None
                await self._report()
            case Resume() if self._is_for_us(work.attempt, work.epoch) and work.number > self._resumed:
                await self._resume(work)
            case MicroBatch() if self._follows(work):
                await self._train(work)
            case Finish():
                await self._checkpoints.finish(work.retention)
                if work.failure is not None:
                    raise JobFailed(work.failure.detail, work.failure.reason)
                return True
        return False

    def _follows(self, work: MicroBatch) -> bool:
        """Whether a micro-batch is the next one of the open step: messages may arrive twice, and late."""
        return (
            self._is_for_us(work.attempt, work.epoch)
            and self._step is not None
            and (work.resume, work.step, work.micro_batch)
            == (self._resumed, self._policy.version, len(self._step.fed))
        )

    def _is_for_us(self, attempt: int, epoch: int) -> bool:
        return (attempt, epoch) == (self._attempt, self._epoch)

    async def _report(self) -> None:
        """Report the trainer's state to the coordinator."""
        if self._missing is not None:
            await publish_event(self._store, self._missing)
        fed = len(self._step.fed) if self._step is not None else 0
        await publish_event(
            self._store,
            TrainerReady(
                self._attempt, self._epoch, self._policy.version, self._proposal, self._resumed, fed
            ),
        )

    async def _resume(self, work: Resume) -> None:
        """Begin a step from the version that the coordinator names."""
        self._resumed = work.number
        self._missing = None
        self._checkpoints.retention = work.retention
        if self._policy.version != work.version or self._policy.manifest != work.manifest:
            with self._metrics.during("loading"):
                reset = await asyncio.to_thread(self._load, work)
            if reset is not None:
                log.warning("%s", reset.message)
                await publish_event(self._store, reset)
            if self._checkpoints.key is not None and self._checkpoints.key != work.checkpoint:
                await self._checkpoints.announce()
        elif self._proposal is not None:
            await self._on_committed(work.version)
        self._proposal = None
        if work.last:
            await self._checkpoints.save()
            await self._checkpoints.announce()
        await self._begin_step(work.version)
        log.info("attempt %d trains from version %d (epoch %d)", work.attempt, work.version, work.epoch)

    def _load(self, work: Resume) -> OptimizerReset | None:
        self._policy.load(work)
        return self._checkpoints.restore(work)

    async def _begin_step(self, version: int) -> None:
        await asyncio.to_thread(self._backend.begin_step, version)
        self._step = OpenStep([], idle_since=asyncio.get_running_loop().time())

    async def _train(self, work: MicroBatch) -> None:
        self._checkpoints.retention = work.retention
        if self._proposal is not None:  # the next step's first micro-batch: the proposal was committed
            self._open_step.waiting += asyncio.get_running_loop().time() - self._open_step.idle_since
            await self._on_committed(self._proposal.version)
            self._proposal = None
            self._open_step.idle_since = asyncio.get_running_loop().time()
        samples = await self._reader.read(work)
        if isinstance(samples, PayloadMissing):
            log.warning("PayloadMissing: %s", ", ".join(samples.trajectories))
            self._metrics.missing(len(samples.trajectories))
            self._missing = samples
            await publish_event(self._store, samples)
            self._step = (
                None  # the coordinator restarts the step without them: do not train before the next Resume
            )
            return
        step, started = self._open_step, asyncio.get_running_loop().time()
        step.waiting += started - step.idle_since
        check_staleness(work, samples)
        self._consumed_log.append(work, samples)
        try:
            with self._metrics.during("training"):
                await asyncio.to_thread(self._backend.accumulate, samples)
        except (JobFailed, MemoryError) as error:
            raise in_micro_batch(error, step=work.step, number=work.micro_batch, samples=samples) from error
        self._metrics.trained(work, samples)
        step.fed.append(tuple(s.trajectory.id for s in samples))
        step.idle_since = asyncio.get_running_loop().time()
        step.training += step.idle_since - started
        if work.last:
            await self._finish_step(work)

    async def _on_committed(self, version: int) -> None:
        """Save the state after a step, if a checkpoint is due, and prune weights: only a committed step may do so."""
        if version % self._config.spec.trainer.checkpoint.every_steps == 0:
            await self._checkpoints.save()
        await asyncio.to_thread(self._policy.prune, version)

    @property
    def _open_step(self) -> OpenStep:
        if self._step is None:
            raise ProtocolViolation("no step is open")
        return self._step

    async def _finish_step(self, work: MicroBatch) -> None:
        step, started = self._open_step, asyncio.get_running_loop().time()
        try:
            with self._metrics.during("training"):
                stats = checked(await asyncio.to_thread(self._backend.finish_step))
            stepped = asyncio.get_running_loop().time()
            # First: a reader that finds the version must find what it was trained on.
            with self._metrics.during("publishing"):
                await asyncio.to_thread(self._consumed_log.sync)
                proposal = await asyncio.to_thread(self._policy.write, work, tuple(step.fed))
        except NotFinite as error:
            raise in_step(error, step=work.step, fed=step.fed) from error
        written = asyncio.get_running_loop().time()
        self._proposal = proposal
        stats = replace(
            stats,
            seconds_waiting=step.waiting,
            seconds_training=step.training + stepped - started,
            seconds_publishing=written - stepped,
        )
        self._metrics.stepped(proposal.version, stats)
        await publish_event(self._store, StepProposed(proposal, stats))
        await self._begin_step(proposal.version)
