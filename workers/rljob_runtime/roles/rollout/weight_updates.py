"""Loads announced policy versions into the engine, between tokens of the requests that are running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from rljob_core.errors import StoreUnavailable, WeightsRejected
from rljob_core.messages import VersionAnnounced
from rljob_core.ports import Engine, WeightStore
from rljob_core.spec import Inflight, PipelineSpec
from rljob_runtime.model.tensor_bytes import size_of
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.versions import AnnouncedVersion

log = logging.getLogger(__name__)

#: Seconds until weights are read again that could not be loaded; doubled each time while their store does not answer.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0

LARGEST_GROWTH = 2
"""A version holds the tensors of the one before it: they may be stored with twice the bytes per element, not more."""


class WeightUpdates:
    """Keeps the engine on the newest announced version whose weights verify.

    Args:
        weights: the weight store.
        engine: receives the weights.
        announced: the newest announced version.
        assignments: of the engine instance.
        progress: publishes progress, with the weights that generated it.
        inflight: `spec.pipeline.inflight` at the start: what happens to running requests at an update.
        changes: new values of `spec.pipeline` while the job runs; an update under way is not affected.
        status_changed: set when the next heartbeat must be sent at once.

    Attributes:
        draining: whether the engine takes no new work, because the announced weights do not verify.
        swapping: whether the engine is taking new weights now.
        stuck: why the announced weights cannot be loaded now; empty if they can.
    """

    def __init__(
        self,
        weights: WeightStore,
        engine: Engine,
        *,
        announced: AnnouncedVersion,
        assignments: Assignments,
        progress: ProgressPublisher,
        inflight: Inflight,
        changes: AsyncIterator[PipelineSpec] | None,
        status_changed: asyncio.Event,
    ) -> None:
        self._weights = weights
        self._engine = engine
        self._announced = announced
        self._assignments = assignments
        self._progress = progress
        self._inflight = inflight
        self._changes = changes
        self._status_changed = status_changed
        self._served: VersionAnnounced | None = None
        self._size = 0
        """Bytes of the tensors that were verified last; 0 before the first."""
        self._retry_seconds = RETRY_SECONDS
        self.draining = False
        self.swapping = False
        self.stuck = ""

    async def load_first(self, stop: asyncio.Event) -> bool:
        """Wait until the engine has its first weights; False if `stop` was set before."""

        async def loaded() -> None:
            while self._engine.version < 0:
                await self._announced.changed.wait()
                await self._update()

        waits = {asyncio.create_task(loaded()), asyncio.create_task(stop.wait())}
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
        return self._engine.version >= 0

    async def keep_newest(self) -> None:
        """Load each announced version until cancelled."""
        assignments = self._assignments
        while True:
            await self._announced.changed.wait()
            # Keep: generate with the old weights for as long as they admit work, then update the idle engine.
            while (
                self._inflight == Inflight.KEEP
                and assignments.running
                and not assignments.too_new
                and not self._revoked
            ):
                assignments.changed.clear()
                await assignments.changed.wait()
            await self._update()
            self._status_changed.set()

    async def follow_changes(self) -> None:
        """Apply changes of `spec.pipeline.inflight` until cancelled."""
        if self._changes is None:
            return
        async for pipeline in self._changes:
            if pipeline.inflight != self._inflight:
                log.info("spec.pipeline.inflight is now %s, from the next version on", pipeline.inflight)
                self._inflight = pipeline.inflight
                self._assignments.changed.set()  # so that `keep_newest` checks again whether it has to wait

    @property
    def _revoked(self) -> bool:
        """Whether the engine's version no longer counts: the user, or the loss of the ledger's end, has revoked it.

        What was begun with it must be generated from the start.
        """
        newest = self._announced.newest
        return newest is not None and newest.version <= self._engine.version

    async def _update(self) -> None:
        newest, served = self._announced.newest, self._served
        self._announced.changed.clear()
        if newest is None:
            return
        if served is not None and (served.version, served.manifest) == (newest.version, newest.manifest):
            self._served = newest
            # A version in between that could not be loaded is no longer announced.
            self.draining, self.stuck = False, ""
            return
        lineage = self._progress.lineage
        try:
            tensors = None if newest.key is None else await asyncio.to_thread(self._verified, newest.key)
            lineage.expect(newest.version, newest.manifest)
            revoked = self._revoked
            inflight = Inflight.RESTART if revoked else self._inflight
            self.swapping = True
            try:
                await self._engine.swap(newest.version, tensors, inflight)
            finally:
                self.swapping = False
        except (WeightsRejected, StoreUnavailable) as error:
            await self._keep_old(newest.version, error)
            return
        lineage.use(newest.version, newest.manifest)
        self.draining, self.stuck, self._retry_seconds = False, "", RETRY_SECONDS
        self._served = newest
        if revoked:
            await self._assignments.return_waiting(self._assignments.too_new, "Restarted")
        await self._assignments.start_admitted()

    async def _keep_old(self, version: int, error: WeightsRejected | StoreUnavailable) -> None:
        """Keep the verified old version for now; then try this announcement again, or a newer one.

        Assignments that wait for these weights are returned. While the weight store does not answer, the engine
        still accepts what its old version admits; while the weights do not verify, it accepts nothing new.
        """
        rejected = isinstance(error, WeightsRejected)
        reason = "WeightsRejected" if rejected else "WeightsUnavailable"
        log.warning("%s: version %d: %s", reason, version, error)
        self.stuck, self.draining = f"{reason}: {error}", rejected
        self._status_changed.set()
        await self._assignments.return_waiting(self._assignments.too_new, reason)
        await asyncio.sleep(self._retry_seconds)
        self._retry_seconds = (
            RETRY_SECONDS if rejected else min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)
        )
        self._announced.changed.set()

    def _verified(self, key: str) -> list[tuple[str, Any]]:
        """All tensors of a version; every digest is checked before the engine receives the first tensor."""
        manifest = self._weights.manifest(key)
        size = sum(size_of(info.dtype, info.shape) for info in manifest.tensors)
        if self._size and size > LARGEST_GROWTH * self._size:
            raise WeightsRejected(
                f"{key} has {size:,} bytes of tensors, where the version before it has {self._size:,}"
            )
        tensors = list(self._weights.read(manifest))
        self._size = size
        return tensors
