"""Records what the coordinator observes, decides and writes as metrics for Prometheus; nothing decides by them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rljob_core.actions import Observation, OwnHeartbeat, PublishMetrics
from rljob_core.errors import RLJobError
from rljob_core.job_state import JobState
from rljob_core.messages import StepMetrics
from rljob_core.planner import Planner
from rljob_core.planner.context import Decision, PlannerContext
from rljob_core.ports import Channel, MessageStore
from rljob_core.records import StepCommitted
from rljob_core.staleness import Buffer, EntryState
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.catalogue import CoordinatorMetrics as Metrics
from rljob_runtime.telemetry.recorder import Recorder, reason_label

log = logging.getLogger(__name__)

STREAMS = (Channel.LEDGER, Channel.TRAJECTORIES, Channel.REWARDS, Channel.PROGRESS, Channel.WEIGHTS)
"""The streams whose size a coordinator may read."""
_STREAMS_SECONDS = 10.0
_MOST_AHEAD = 8


class CoordinationMetrics:
    """The metrics of one coordinator.

    Args:
        recorder: takes them; None if nobody reads them.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = Recorder(CATALOGUE["coordinator"]) if recorder is None else recorder
        self._beat: float | None = None

    def claimed(self, planner: Planner) -> None:
        """A coordinator has claimed its epoch: from now on the job should make progress."""
        self._recorder.set(Metrics.COMMIT_TIMESTAMP, time.time())
        self._job(planner.context)

    def deciding(self) -> AbstractContextManager[None]:
        """Measure a decision."""
        return self._recorder.timed(Metrics.DECIDE_SECONDS)

    @contextmanager
    def appending(self, decision: Decision) -> Iterator[None]:
        """Measure how long the ledger takes for a decision's records."""
        with self._recorder.timed(Metrics.LEDGER_APPEND_SECONDS):
            yield
        self._recorder.add(Metrics.LEDGER_RECORDS, len(decision.records))

    def decided(self, observations: Sequence[Observation], decision: Decision, planner: Planner) -> None:
        """Take a decision whose records are in the ledger."""
        if any(isinstance(record, StepCommitted) for record in decision.records):
            self._recorder.set(Metrics.COMMIT_TIMESTAMP, time.time())
            self._job(planner.context)
        for action in decision.actions:
            if isinstance(action, PublishMetrics):
                self._line(action.metrics)
        if any(isinstance(observation, OwnHeartbeat) for observation in observations):
            self._job(planner.context)
            now = self._recorder.now()
            elapsed, self._beat = now - (now if self._beat is None else self._beat), now
            self._starved(planner.context, elapsed)
            self._cost(planner.context, elapsed)

    async def follow_streams(self, store: MessageStore) -> None:
        """Read the sizes of the job's streams again and again, if anybody reads metrics."""
        recorder = self._recorder
        while recorder.is_read:
            for channel in STREAMS:
                try:
                    held, limit = await store.filled(channel)
                except RLJobError as error:
                    log.debug("the size of %s is not known: %s", channel, error)
                    continue
                recorder.set(Metrics.STREAM_BYTES, held, channel.value)
                if limit:
                    recorder.set(Metrics.STREAM_LIMIT_BYTES, limit, channel.value)
            await asyncio.sleep(_STREAMS_SECONDS)

    def _job(self, context: PlannerContext) -> None:
        """Where the job stands; takes time that grows with buffers and engines, not with trajectories."""
        recorder, state = self._recorder, context.state
        engines = context.liveness.engines.values()
        prices = {pool.name: pool.cost_per_hour for pool in context.spec.rollout.pools}
        for metric, value in (
            (Metrics.STEP, state.version),
            (Metrics.LAST_STEP, context.last_version),
            (Metrics.RUNNING, state.finished is None),
            (Metrics.FAILED, state.finished is not None and state.finished.outcome != "Succeeded"),
            (Metrics.WRITER_EPOCH, state.writer.count),
            (Metrics.ENGINES, len(engines)),
            (Metrics.SLOTS, sum(engine.slots for engine in engines)),
            (Metrics.SLOTS_TAKEN, sum(engine.slots_taken for engine in engines)),
            (Metrics.ROOM_WANTED_BYTES, context.room.lacking),
            (Metrics.SITES_AWAY, len(context.sites.away)),
            (Metrics.SITES_HELD, len(context.transfers.held_back)),
            (Metrics.COST_PER_HOUR, sum(float(prices.get(engine.pool) or 0) for engine in engines)),
            (Metrics.RESUMED_TOKENS, state.counts["resumed_tokens"]),
        ):
            recorder.set(metric, value)
        for event in ("planned", "generated", "consumed", "resumed"):
            recorder.set(Metrics.TRAJECTORIES, state.counts[event], event)
        recorder.replace(Metrics.ABORTED, by_reason(state.aborted))
        recorder.replace(Metrics.FAILED_ATTEMPTS, by_reason(state.attempts_failed))
        recorder.replace(Metrics.OPEN, _open(state))
        recorder.replace(Metrics.BUFFER_GROUPS, occupancy(state.version, state.buffers.buffers.values()))

    def _cost(self, context: PlannerContext, elapsed: float) -> None:
        """Count what the engines have cost since the last heartbeat, `elapsed` seconds ago."""
        engines = Counter(engine.pool for engine in context.liveness.engines.values())
        for pool in context.spec.rollout.pools:
            if pool.cost_per_hour is not None:
                cost = engines[pool.name] * float(pool.cost_per_hour) * elapsed / 3600
                self._recorder.add(Metrics.COST, cost, pool.name)

    def _starved(self, context: PlannerContext, elapsed: float) -> None:
        """Count the time since the last heartbeat for each stage that has nothing to do now."""
        state = context.state
        if state.finished is not None:
            return
        engines = context.liveness.engines.values()
        slots = sum(engine.slots for engine in engines)
        taken = sum(engine.slots_taken for engine in engines)
        for stage, share in (
            ("rollout", 1 - taken / slots if slots else 0.0),
            ("reward", float(not state.unscored)),
            ("trainer", float(context.trainer_waits)),
        ):
            self._recorder.add(Metrics.STARVED_SECONDS, elapsed * share, stage)

    def _line(self, line: StepMetrics) -> None:
        recorder = self._recorder
        for metric, value, labels in (
            (Metrics.REWARD_MEAN, line.reward_mean, ()),
            (Metrics.REWARD_STD, line.reward_std, ()),
            (Metrics.REWARD_MEAN_TRAINED, line.reward_mean_trained, ()),
            *((Metrics.REWARD_PART, mean, (name,)) for name, mean in line.reward_parts.items()),
            (Metrics.RESPONSE_TOKENS_MEAN, line.response_tokens_mean, ()),
            *(
                (metric, value, (label, name))
                for name, score in line.held_out.items()
                for metric, label, value in (
                    (Metrics.HELDOUT_REWARD, "sampled", score.sampled),
                    (Metrics.HELDOUT_REWARD, "greedy", score.greedy),
                    *((Metrics.HELDOUT_PASS, str(k), share) for k, share in score.pass_at.items()),
                )
            ),
        ):
            if value is not None:
                recorder.set(metric, value, *labels)


def by_reason(counts: Counter[str]) -> dict[tuple[str, ...], float]:
    """Counts by the first word of their reasons, of which some are texts that an engine has sent."""
    sums: Counter[str] = Counter()
    for reason, count in counts.items():
        sums[reason_label(reason)] += count
    return {(reason,): float(count) for reason, count in sums.items()}


def occupancy(version: int, buffers: Iterable[Buffer]) -> dict[tuple[str, ...], float]:
    """Groups by how far ahead of the current step their buffer is, and by state."""
    sums: Counter[tuple[str, ...]] = Counter()
    for buffer in buffers:
        ahead = buffer.step - version
        label = str(ahead) if ahead < _MOST_AHEAD else f"{_MOST_AHEAD}+"
        for state in EntryState:
            sums[label, state.value] += buffer.count(state)
        sums[label, "free"] += buffer.free
    return {labels: float(count) for labels, count in sums.items()}


def _open(state: JobState) -> dict[tuple[str, ...], float]:
    generating = sum(map(len, state.generating.values()))
    open_now = {"waiting": len(state.waiting), "generating": generating, "unscored": len(state.unscored)}
    return {(name,): float(count) for name, count in open_now.items()}
