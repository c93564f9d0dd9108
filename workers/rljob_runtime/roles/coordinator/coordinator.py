"""The coordinator's main loop: observations in, `Planner.decide`, ledger, then actions. It holds metadata only.

    trajectories (headers) ┐                                          ┌ engine queues
    rewards                ├→ inbox → Planner.decide → ledger → actions ┼ trainer queue
    signals, events        ┘                          (acknowledged)  └ versions, metrics, deletions

The loop handles one batch of observations at a time. While a batch's records travel to the ledger, the next
observations gather in the inbox, so the ledger is appended to in batches without a timer (group commit). The
coordinator acknowledges an event only after the ledger has acknowledged the records that the event led to, and
carries out an action only after the ledger has acknowledged the records of its decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from rljob_core.actions import Observation, StreamLimit
from rljob_core.config import JobConfig
from rljob_core.errors import Fenced, StorageRefused
from rljob_core.job_state import JobState
from rljob_core.planner import Planner, spec_change
from rljob_core.ports import Channel, MessageStore, WeightStore
from rljob_core.spec import RLJobSpec
from rljob_runtime.data.row_scan import most_tokens
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.roles.coordinator.actions import ActionRunner, CountTokens
from rljob_runtime.roles.coordinator.coordination_metrics import CoordinationMetrics
from rljob_runtime.roles.coordinator.inputs import CoordinatorInputs
from rljob_runtime.roles.coordinator.length_predictions import ConnectLengths, LengthPredictions
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.roles.decision_log import DecisionLog
from rljob_runtime.roles.pipeline_updates import make_room
from rljob_runtime.roles.recovery_sources import read_stores
from rljob_runtime.telemetry.otlp import TraceExport
from rljob_runtime.telemetry.recorder import Recorder

log = logging.getLogger(__name__)


class Coordinator:
    """One coordinator instance; `run` returns only when cancelled or fenced."""

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        weights: WeightStore,
        prompts: PromptTexts,
        *,
        instance: str,
        held_out: Sequence[int] | None = None,
        count_tokens: CountTokens = most_tokens,
        prefetch: float = 0.25,
        changes: AsyncIterator[RLJobSpec] | None = None,
        lost_sites: AsyncIterator[tuple[str, ...]] | None = None,
        decisions: DecisionLog | None = None,
        lengths: ConnectLengths | None = None,
        recorder: Recorder | None = None,
        traces: TraceExport | None = None,
    ) -> None:
        """
        Args:
            config: of the job.
            store: the job's streams, open.
            weights: the weight store, whose manifests name commits that the ledger may have lost.
            prompts: the texts of its prompts.
            held_out: prompts that an evaluation asks of each held-out set; None: as many as of data without end.
            count_tokens: gives the length of one, by which the trajectory stream is shared out.
            instance: name of this coordinator, unique among all that the job ever has.
            prefetch: share of an engine's slots for which it is sent work ahead of time.
            changes: new values of the spec while the job runs.
            lost_sites: the sites that are lost, each time that they change.
            lengths: connects the predictor of lengths; None for the one that the spec names, in a thread.
            recorder: takes the metrics.
            traces: takes what trajectories went through; None to trace none.
            decisions: the file that records all observations and decisions for `rljob replay`; None to record none.
        """
        self._config = config
        self._store = store
        self._weights = weights
        self._instance = instance
        self._prefetch = prefetch
        self._held_out = held_out
        self._planner = Planner(config, prefetch=prefetch, held_out=held_out)
        self._ledger = Ledger(store, job=config.uid, instance=instance)
        self._decisions = decisions
        self._metrics = CoordinationMetrics(recorder)
        self._traces = traces
        max_tokens = config.spec.rollout.sampling.max_tokens
        trajectories = TrajectoryStore(store, max_tokens=max_tokens)
        self._inputs = CoordinatorInputs(
            config,
            store,
            trajectories,
            instance=instance,
            changes=changes,
            sites=lambda: self._planner.context.sites.links,
            lost_sites=lost_sites,
        )
        self._actions = ActionRunner(
            store,
            trajectories,
            ProgressStore(store, max_tokens=max_tokens),
            prompts,
            self._inputs.put,
            lengths=(lengths or partial(LengthPredictions, config, prompts))(self._inputs.put_nowait),
            count_tokens=count_tokens,
            instance=instance,
        )

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Recover from the ledger, claim an epoch, then decide until cancelled.

        Args:
            ready: called once the epoch is claimed.

        Raises:
            Fenced: another coordinator has claimed a newer epoch.
            CorruptLedger: the ledger does not decode, or belongs to another job.
            StoreUnavailable: the message store did not answer for too long.
        """
        await self._claim_epoch()
        ready()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._metrics.follow_streams(self._store))
            for reader in self._inputs.readers:
                group.create_task(reader())
            while True:
                batch = await self._inputs.next_batch()
                await self._decide([observation for observation, _ in batch])
                await asyncio.gather(*(delivery.ack() for _, delivery in batch if delivery is not None))
                await self._ledger.snapshot_if_due(self._planner.state)

    async def _claim_epoch(self) -> None:
        """Replay the ledger, claim the next epoch, restore commits that the ledger has lost."""
        state = await self._ledger.replay()
        config = await self._with_room(state)
        now = asyncio.get_running_loop().time()
        if self._decisions is not None:
            state = self._decisions.begin(
                config, state, now, prefetch=self._prefetch, held_out=self._held_out
            )
        self._planner = Planner(config, prefetch=self._prefetch, state=state, held_out=self._held_out)
        claimed = self._planner.start(self._instance, now)
        spec = spec_change.spec_in_force(config.spec)
        await self._ledger.claim(state.writer, (*claimed.records, spec))
        await self._inputs.claimed(state.writer.number)
        self._metrics.claimed(self._planner)
        # Not before the claim: from then on no earlier coordinator can commit, so the stores hold all its commits.
        found = await read_stores(self._store, self._weights, state.version)
        limit = await self._store.limit(Channel.TRAJECTORIES)
        await self._decide([found, StreamLimit(limit)] if limit else [found])
        log.info("writer epoch %d at version %d", state.writer.count, state.version)

    async def _with_room(self, state: JobState) -> JobConfig:
        """The configuration to start with: with the ledger's pipeline if there is no room for the configured one.

        Raises:
            StorageRefused: there is no room for a new job.
        """
        try:
            await make_room(self._store, self._config)
        except StorageRefused as error:
            if state.pipeline is None:
                raise
            log.warning("spec.pipeline stays as it was: %s", error)
            self._inputs.retry_pipeline = True
            spec = self._config.spec.model_copy(update={"pipeline": spec_change.pipeline_of(state.pipeline)})
            return self._config.model_copy(update={"spec": spec})
        return self._config

    async def _decide(self, observations: Sequence[Observation]) -> None:
        now = asyncio.get_running_loop().time()
        try:
            with self._metrics.deciding():
                decision = self._planner.decide(observations, now)
        except Fenced as error:
            if self._decisions is not None:
                self._decisions.end(observations, now, str(error))
            raise
        if self._decisions is not None:
            self._decisions.write(observations, now, decision)
        if decision.records or decision.actions:
            # Also without records: only the coordinator that can append may delete, announce or send.
            with self._metrics.appending(decision):
                await self._ledger.append(self._planner.state.writer, decision.records)
        self._metrics.decided(observations, decision, self._planner)
        if self._traces is not None:
            self._traces.take(decision.records, decision.actions)
        await self._actions.run(decision.actions, epoch=self._planner.epoch, ledger=self._ledger.digest)
