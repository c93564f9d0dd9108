"""The trainer's checkpoints: when the optimizer state is saved, and from which checkpoint training continues."""

from __future__ import annotations

import asyncio

from rljob_core.messages import CheckpointWritten, OptimizerReset, Resume, Retention
from rljob_core.ports import MessageStore, TrainerBackend
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.roles.trainer.policy_weights import PolicyWeights
from rljob_runtime.roles.trainer.training_metrics import TrainingMetrics
from rljob_runtime.training.checkpoint_base import Checkpoints


class Checkpointing:
    """Saves and restores the state of one trainer's backend.

    Args:
        store: the job's streams, open.
        checkpoints: where the state is saved.
        backend: whose state it is.
        policy: the weights in memory, whose version a checkpoint belongs to.
        attempt: of the trainer.
        metrics: of the trainer.

    Attributes:
        retention: which checkpoints are kept besides the newest ones, as the coordinator has said last.
    """

    def __init__(
        self,
        store: MessageStore,
        checkpoints: Checkpoints,
        backend: TrainerBackend,
        policy: PolicyWeights,
        *,
        attempt: int,
        metrics: TrainingMetrics,
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._backend = backend
        self._policy = policy
        self._attempt = attempt
        self._metrics = metrics
        self._newest: tuple[int, str] | None = None
        self.retention: Retention | None = None

    @property
    def key(self) -> str | None:
        """Key of the newest checkpoint that was saved or restored."""
        return None if self._newest is None else self._newest[1]

    def restore(self, work: Resume) -> OptimizerReset | None:
        """Load the state that training continues with into the backend; blocks.

        Returns what is missing of it, if anything is.
        """
        self._newest = self._checkpoint_for(work)
        self._backend.load_state(None if self._newest is None else self._checkpoints.state(self._newest[1]))
        used = None if self._newest is None else self._newest[0]
        if not work.version or (used is not None and used >= (work.checkpoint_version or 0)):
            return None
        return OptimizerReset(self._attempt, work.version, work.checkpoint or "", used)

    def _checkpoint_for(self, work: Resume) -> tuple[int, str] | None:
        """Version and key of the checkpoint to continue from; None for a fresh optimizer."""
        if work.checkpoint is None or work.checkpoint_version is None:
            return None
        if work.checkpoint in self._checkpoints.keys():  # noqa: SIM118  a method
            return work.checkpoint_version, work.checkpoint
        # A ledger that lost its end names a checkpoint that a newer one has replaced since.
        return self._checkpoints.newest(work.version)

    async def save(self) -> None:
        """Save the state after the newest finished step, unless it is saved already, and announce it."""
        version = self._policy.version
        if not version or (self._newest is not None and self._newest[0] == version):
            return
        with self._metrics.checkpointing():
            key = await asyncio.to_thread(
                self._checkpoints.write,
                version=version,
                manifest=self._policy.manifest,
                attempt=self._attempt,
                save=self._backend.save,
                retention=self.retention,
            )
        self._newest = version, key
        await self.announce()

    async def finish(self, retention: Retention | None) -> None:
        """At the end of the job, when nothing is saved any more, keep the best checkpoint, if one is to be kept."""
        if retention is not None:
            await asyncio.to_thread(self._checkpoints.prune, self._attempt, retention)

    async def announce(self) -> None:
        """Tell the coordinator which checkpoint is the newest, if there is one."""
        if self._newest is not None:
            version, key = self._newest
            manifest = (await asyncio.to_thread(self._checkpoints.info, key)).manifest
            await publish_event(self._store, CheckpointWritten(self._attempt, version, manifest, key))
