"""Loads announced policy versions into the engine, between tokens of the requests that are running."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from rljob_core.errors import StoreUnavailable, WeightsMissing, WeightsRejected
from rljob_core.messages import AWAITED, REJECTED, SWAPS_SIGNALLED, UNAVAILABLE, VersionAnnounced, WeightSwap
from rljob_core.ports import Engine, WeightStore
from rljob_core.spec import Inflight, PipelineSpec, SwapTime
from rljob_runtime.model.tensor_bytes import size_of
from rljob_runtime.process.stopping import done_before
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.engine_metrics import EngineMetrics
from rljob_runtime.roles.rollout.episodes import Episodes
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.swap_costs import SwapCosts
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
        swap_time: `spec.rollout.weightSync`: when an update is due.
        changes: new values of `spec.pipeline` while the job runs; an update under way is not affected.
        status_changed: set when the next heartbeat must be sent at once.
        metrics: of the engine instance.
        waits_for_copies: whether the engine's site has copies of the weights, which may come later than announcements.
        episodes: of the engine instance, if the job has an environment.

    Attributes:
        draining: whether the engine takes no new work, because the announced weights do not verify.
        swapping: whether the engine is taking new weights now.
        stuck: why the announced weights cannot be loaded now; empty if they can.
        swaps: the newest ones that have succeeded, the newest last.
        costs: what they cost the engine.
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
        swap_time: SwapTime,
        changes: AsyncIterator[PipelineSpec] | None,
        status_changed: asyncio.Event,
        metrics: EngineMetrics,
        waits_for_copies: bool = False,
        episodes: Episodes | None = None,
    ) -> None:
        self._weights = weights
        self._engine = engine
        self._announced = announced
        self._assignments = assignments
        self._progress = progress
        self._inflight = inflight
        self._changes = changes
        self._status_changed = status_changed
        self._waits_for_copies = waits_for_copies
        self._metrics = metrics
        self._episodes = episodes
        self._served: VersionAnnounced | None = None
        self._size = 0
        """Bytes of the tensors that were verified last; 0 before the first."""
        self._retry_seconds = RETRY_SECONDS
        self.draining = False
        self.swapping = False
        self.stuck = self.stuck_detail = ""
        self.swaps: deque[WeightSwap] = deque(maxlen=SWAPS_SIGNALLED)
        # At a site, copies of the weights come over a link that is busy: what is here is taken.
        self.costs = SwapCosts(engine, SwapTime.AT_ONCE if waits_for_copies else swap_time)

    async def load_first(self, stop: asyncio.Event) -> bool:
        """Wait until the engine has its first weights; False if `stop` was set before."""

        async def loaded() -> None:
            while self._engine.version < 0:
                await self._announced.changed.wait()
                await self._update()

        await done_before(stop, loaded())
        return self._engine.version >= 0

    async def keep_newest(self) -> None:
        """Load the newest announced version whenever that is due, until cancelled."""
        announced, assignments = self._announced.changed, self._assignments.changed
        while True:
            await announced.wait()
            while not self._is_due:
                announced.clear()
                assignments.clear()
                await _either(announced, assignments)
            await self._update()
            self._status_changed.set()

    @property
    def _is_due(self) -> bool:
        """Whether the newest weights are taken now; until then, the old ones generate what they may."""
        if self._revoked or self.stuck:
            return True
        idle, needed = not self._assignments.running, bool(self._assignments.too_new)
        if self._inflight == Inflight.KEEP:  # what runs ends first
            return idle or needed
        return self.costs.is_due(self._announced, idle=idle, needed=needed)

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
            self.draining, self.stuck, self.stuck_detail = False, "", ""
            return
        try:
            await self._use(newest)
        except (WeightsRejected, StoreUnavailable) as error:
            if self._waits_for_copies and isinstance(error, WeightsMissing):
                await self._use_earlier()
            await self._keep_old(newest.version, error)
            return
        self.stuck = self.stuck_detail = ""
        self.draining, self._retry_seconds = False, RETRY_SECONDS

    async def _use(self, announced: VersionAnnounced) -> None:
        """Verify an announced version's weights, and have the engine take them."""
        lineage = self._progress.lineage
        tensors = None
        if announced.key is not None:
            with self._metrics.reading_weights():
                tensors = await asyncio.to_thread(self._verified, announced.key)
        lineage.expect(announced.version, announced.manifest)
        revoked = self._revoked
        inflight = Inflight.RESTART if revoked else self._inflight
        self.swapping = True
        began, started = time.time(), asyncio.get_running_loop().time()
        self.costs.begin()
        try:
            with self._metrics.swapping():
                await self._engine.swap(announced.version, tensors, inflight)
        finally:
            self.swapping = False
        self.swaps.append(WeightSwap(announced.version, began, asyncio.get_running_loop().time() - started))
        lineage.use(announced.version, announced.manifest)
        self._served = announced
        if inflight == Inflight.RESTART and self._episodes is not None:
            await self._episodes.restart(since=None if revoked else announced.version)
        if revoked:
            await self._assignments.return_waiting(self._assignments.too_new, "Restarted")
        running = self._assignments.running
        before = set(running)
        await self._assignments.start_admitted()
        if inflight == Inflight.UPDATE:
            self.costs.end(work for request, work in running.items() if request not in before)

    async def _use_earlier(self) -> None:
        """Use the newest version that is here while a newer one is on its way.

        Where steps are shorter than the way of the weights, the newest is never here when it is announced.
        """
        for announced in self._announced.earlier(after=self._engine.version):
            with suppress(WeightsRejected, StoreUnavailable):
                await self._use(announced)
                return

    async def _keep_old(self, version: int, error: WeightsRejected | StoreUnavailable) -> None:
        """Keep the verified old version for now; then try this announcement again, or a newer one.

        Assignments that wait for these weights are returned. While the weight store does not answer, the engine
        still accepts what its old version admits; while the weights do not verify, it accepts nothing new.

        At a site that has copies, weights that are not there yet are on their way: what waits for them is kept.
        """
        awaited = self._waits_for_copies and isinstance(error, (WeightsMissing, StoreUnavailable))
        rejected = isinstance(error, WeightsRejected) and not awaited
        reason = AWAITED if awaited else REJECTED if rejected else UNAVAILABLE
        if not awaited or self.stuck != AWAITED:
            log.warning("%s: version %d: %s", reason, version, error)
        self._metrics.weights_failed(reason)
        self.stuck, self.stuck_detail, self.draining = reason, str(error), rejected
        self._status_changed.set()
        if not awaited:
            await self._assignments.return_waiting(self._assignments.too_new, reason)
        await asyncio.sleep(self._retry_seconds)
        self._retry_seconds = (
            RETRY_SECONDS
            if isinstance(error, WeightsRejected)
            else min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)
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


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    """Wait until one of the two is set."""
    waits = {asyncio.create_task(first.wait()), asyncio.create_task(second.wait())}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
