"""The coordinator's shell: streams in, `Planner.decide`, ledger, then actions. It holds metadata only.

    trajectories (headers) ┐                                          ┌ engine queues
    rewards                ├→ inbox → Planner.decide → ledger → actions ┼ trainer queue
    signals, events        ┘                          (acknowledged)  └ versions, metrics, deletions

One batch of observations at a time: while a batch's records travel to the ledger, the next ones gather, so the
ledger is appended to in batches without a timer (group commit). An event is acknowledged only after the records
that it led to are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from rljob_core.actions import (
    Action,
    Announce,
    CheckRewards,
    DeletePayloads,
    DeleteRewards,
    DropProgress,
    FindProgress,
    ListProgress,
    Observation,
    OwnHeartbeat,
    PayloadAbsent,
    PayloadSeen,
    ProgressFound,
    ProgressListed,
    PublishMetrics,
    RetireEngine,
    RewardsComplete,
    RewardsSeen,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    StoresRead,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.errors import Fenced, StorageRefused
from rljob_core.job_state import JobState
from rljob_core.messages import (
    COORDINATOR_EVENT,
    COORDINATOR_SIGNAL,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    ENGINE_WORK,
    MARK,
    MARK_HEADER,
    REWARD_BATCH,
    REWARD_QUEUE,
    STEP_METRICS,
    TRAINER_WORK,
    VERSION_ANNOUNCED,
    CoordinatorEvent,
    EngineGone,
    EngineWork,
    EngineWorkBatch,
    Generate,
    GenerationEnded,
    RoleFailed,
    VersionAnnounced,
)
from rljob_core.planner import Decision, Planner, pipeline_change
from rljob_core.ports import Channel, Delivery, MessageStore, WeightStore
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import is_evaluation
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import Absence, LocatedSummary, TrajectoryStore
from rljob_runtime.roles.decision_log import DecisionLog
from rljob_runtime.roles.pipeline_change import make_room, take_over

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
#: Of one message of an engine's work, at most; what an item takes beside its text. JSON may double a text.
WORK_BYTES, ITEM_BYTES = 400_000, 300

Render = Callable[[int, bool], str]
"""The text of a prompt by its index; True for held-out prompts."""


class Coordinator:
    """One coordinator instance; `run` returns only when cancelled or fenced."""

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        weights: WeightStore,
        render: Render,
        *,
        instance: str,
        prefetch: float = 0.25,
        changes: AsyncIterator[PipelineSpec] | None = None,
        decisions: DecisionLog | None = None,
    ) -> None:
        """
        Args:
            weights: whose manifests tell of commits that the ledger may have lost.
            changes: of `spec.pipeline` while the job runs.
            decisions: where all that is seen and decided is written down, to be replayed.
        """
        self._config = config
        self._changes = changes
        self._store = store
        self._weights = weights
        self._render = render
        self._instance = instance
        self._planner = Planner(config, prefetch=prefetch)
        self._ledger = Ledger(store, job=config.uid, instance=instance)
        self._decisions = decisions
        self._refused = False
        self._trajectories = TrajectoryStore(store)
        self._progress = ProgressStore(store)
        self._inbox: asyncio.Queue[tuple[Observation, Delivery | None]] = asyncio.Queue()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Recover from the ledger, claim an epoch, go on for ever.

        Raises:
            Fenced: another coordinator has claimed a newer epoch.
            CorruptLedger: the ledger does not decode, or is another job's.
            StoreUnavailable: the message store is away for too long.
        """
        await self._take_charge()
        ready()
        async with asyncio.TaskGroup() as group:
            for reader in (
                self._read_payloads,
                self._read_rewards,
                self._read_signals,
                self._read_events,
                self._beat,
                self._read_changes,
            ):
                group.create_task(reader())
            while True:
                batch = [await self._inbox.get()]
                while not self._inbox.empty() and len(batch) < 1024:
                    batch.append(self._inbox.get_nowait())
                await self._decide([o for o, _ in batch])
                await asyncio.gather(*(d.ack() for _, d in batch if d is not None))
                await self._ledger.snapshot_if_due(self._planner.state)

    # ------------------------------------------------------------------------------------------ decisions

    async def _take_charge(self) -> None:
        """Replay the ledger, claim the next epoch, take back what the ledger has lost."""
        state = await self._ledger.replay()
        config = await self._with_room(state)
        now = asyncio.get_running_loop().time()
        if self._decisions is not None:
            state = self._decisions.begin(config, state, now, prefetch=self._planner.prefetch)
        self._planner.spec, self._planner.state = config.spec, state
        claimed = self._planner.start(self._instance, now)
        await self._ledger.claim(state.writer, claimed.records)
        # Only now: whatever a coordinator before this one has committed is in the stores by now.
        await self._decide([await read_stores(self._store, self._weights, state.version)])
        log.info("writer epoch %d at version %d", state.writer.count, state.version)

    async def _with_room(self, state: JobState) -> JobConfig:
        """The configuration to begin with: of a running job whose new pipeline gets no room, the one it had.

        Raises:
            StorageRefused: there is no room for a new job.
        """
        try:
            await make_room(self._store, self._config)
        except StorageRefused as error:
            if state.pipeline is None:
                raise
            log.warning("spec.pipeline stays as it was: %s", error)
            self._refused = True
            spec = self._config.spec.model_copy(
                update={"pipeline": pipeline_change.pipeline_of(state.pipeline)}
            )
            return self._config.model_copy(update={"spec": spec})
        return self._config

    async def _decide(self, observations: Sequence[Observation]) -> None:
        now = asyncio.get_running_loop().time()
        try:
            decision = self._planner.decide(observations, now)
        except Fenced as error:
            if self._decisions is not None:
                self._decisions.end(observations, now, str(error))
            raise
        if self._decisions is not None:
            self._decisions.write(observations, now, decision)
        if decision.records or decision.actions:
            # Also without records: only who can append is in charge, and may delete, announce or send.
            await self._ledger.append(self._planner.state.writer, decision.records)
        await self._act_on(decision)

    async def _act_on(self, decision: Decision) -> None:
        # In order towards each receiver, side by side between receivers.
        lanes: dict[str, list[Action]] = {}
        for action in decision.actions:
            lanes.setdefault(_lane(action), []).append(action)
        await asyncio.gather(*(self._run_lane(actions) for actions in lanes.values()))

    async def _run_lane(self, actions: Sequence[Action]) -> None:
        for action in actions:
            await self._act(action)

    async def _act(self, action: Action) -> None:
        store = self._store
        match action:
            case SendToEngine():
                for items in _messages([self._with_text(item) for item in action.items]):
                    data = ENGINE_WORK.dump_json(EngineWorkBatch(self._planner.epoch, items))
                    await store.publish(Channel.WORK, f"engine.{action.engine}", data)
            case SendToTrainer():
                data = TRAINER_WORK.dump_json(action.message)
                await store.publish(Channel.TRAINING, f"trainer.{action.attempt}", data)
            case Announce():
                await publish_version(store, action)
            case DeletePayloads():
                await self._trajectories.delete(action.sequences)
            case DeleteRewards():
                await store.delete(Channel.REWARDS, action.sequences)
            case FindProgress():
                asked = zip(action.trajectories, action.attempts, strict=True)
                await asyncio.gather(*(self._find_progress(*one) for one in asked))
            case ListProgress():
                await self._inbox.put((ProgressListed(await self._progress.trajectories()), None))
            case DropProgress():
                await self._progress.drop(action.trajectories)
            case CheckRewards():
                await self._check_rewards(action.number)
            case RetireEngine():
                await store.purge(Channel.WORK, f"engine.{action.engine}")
                await store.delete_signal(ENGINE_SIGNALS + action.engine)
            case PublishMetrics():
                await publish_metrics(store, action)

    async def _find_progress(self, trajectory: str, attempt: int) -> None:
        found = ProgressFound(trajectory, attempt, await self._progress.newest(trajectory))
        await self._inbox.put((found, None))

    async def _check_rewards(self, number: int) -> None:
        """If reward workers have nothing left to do, put a mark behind all that they have said."""
        if not await self._store.unacknowledged(Channel.TRAJECTORIES, REWARD_QUEUE):
            mark = {MARK_HEADER: f"{self._instance}/{number}"}
            await self._store.publish(Channel.REWARDS, MARK, b"", headers=mark)

    def _with_text(self, work: EngineWork) -> EngineWork:
        if isinstance(work, Generate):
            return replace(work, text=self._render(work.prompt, is_evaluation(work.trajectory)))
        return work

    # ------------------------------------------------------------------------------------------ inputs

    async def _read_payloads(self) -> None:
        # From the first message that is left: after a restart this takes back what survived.
        async for located in self._trajectories.summaries():
            for sequence, found in groupby(located, key=lambda found: found.sequence):
                await self._inbox.put((_seen(sequence, list(found)), None))

    async def _read_rewards(self) -> None:
        async for messages in self._store.read(Channel.REWARDS):
            for message in messages:
                if message.suffix == MARK:
                    instance, _, number = message.headers.get(MARK_HEADER, "").rpartition("/")
                    # Of one that is not this coordinator's, it says nothing.
                    check = int(number) if instance == self._instance else 0
                    await self._inbox.put((RewardsComplete(check, message.sequence), None))
                    continue
                results = REWARD_BATCH.validate_json(message.data).results
                await self._inbox.put((RewardsSeen(message.sequence, results), None))

    async def _read_signals(self) -> None:
        async for key, value in self._store.watch_signals():
            if key.startswith(ENGINE_SIGNALS):
                signal = ENGINE_SIGNAL.validate_json(value) if value else None
                await self._inbox.put((SignalSeen(key.removeprefix(ENGINE_SIGNALS), signal), None))
            elif key == COORDINATOR_SIGNAL and value == self._instance.encode():
                await self._inbox.put((OwnHeartbeat(), None))

    async def _read_events(self) -> None:
        queue = await self._store.queue(Channel.EVENTS, ">", name="coordinator")
        while True:
            for delivery in await queue.fetch(messages=256, max_bytes=1 << 20, timeout=5.0):
                event = COORDINATOR_EVENT.validate_json(delivery.message.data)
                if delivery.message.suffix == _sender(event):
                    await self._inbox.put((event, delivery))
                else:  # the server holds each role to its own subject, so this is forged
                    log.warning("an event of %s was sent by %s", _sender(event), delivery.message.suffix)
                    await delivery.ack()

    async def _read_changes(self) -> None:
        def tell(observation: Observation) -> None:
            self._inbox.put_nowait((observation, None))

        await take_over(self._store, self._config, self._pipelines(), tell)

    async def _pipelines(self) -> AsyncIterator[PipelineSpec]:
        """What `spec.pipeline` is to be, as it changes."""
        if self._refused:
            yield self._config.spec.pipeline
        if self._changes is not None:
            async for pipeline in self._changes:
                yield pipeline

    async def _beat(self) -> None:
        while True:
            await self._store.put_signal(COORDINATOR_SIGNAL, self._instance.encode())
            await asyncio.sleep(HEARTBEAT_SECONDS)


def _seen(sequence: int, found: Sequence[LocatedSummary | Absence]) -> PayloadSeen | PayloadAbsent:
    summaries = []
    for one in found:
        if isinstance(one, Absence):
            return PayloadAbsent(sequence, one.engine, one.trajectory, one.attempt)
        s = one.summary
        summaries.append(Summary(s.trajectory, s.attempt, s.span, s.tokens, s.response_tokens, s.digest))
    return PayloadSeen(sequence, tuple(summaries))


def _messages(items: Sequence[EngineWork]) -> Iterator[tuple[EngineWork, ...]]:
    """Cut so that each part fits into a message: a round may hold many long prompts."""
    part: list[EngineWork] = []
    room = WORK_BYTES
    for item in items:
        size = ITEM_BYTES + (
            len(item.text.encode()) if isinstance(item, Generate) else 64 * len(item.trajectories)
        )
        if part and size > room:
            yield tuple(part)
            part, room = [], WORK_BYTES
        part.append(item)
        room -= size
    if part:
        yield tuple(part)


def _lane(action: Action) -> str:
    match action:
        case SendToEngine() | RetireEngine():
            return f"engine {action.engine}"
        case SendToTrainer():
            return "trainer"
        case _:
            return type(action).__name__


def _sender(event: CoordinatorEvent) -> str:
    """The role that an event can only come from."""
    match event:
        case RoleFailed():
            return event.role
        case EngineGone() | GenerationEnded():
            return "rollout"
        case _:
            return "trainer"


async def read_stores(store: MessageStore, weights: WeightStore, version: int) -> StoresRead:
    """What outlives a ledger whose newest version is `version`."""
    manifests = await asyncio.to_thread(weights.proposals, version)
    proposals = tuple(replace(m.proposal, manifest=m.digest) for m in manifests if m.proposal is not None)
    announced = await store.last(Channel.VERSIONS)
    return StoresRead(
        proposals, VERSION_ANNOUNCED.validate_json(announced.data).manifest if announced else ""
    )


async def publish_version(store: MessageStore, action: Announce) -> None:
    """Tell engines of the newest version."""
    announced = VersionAnnounced(action.epoch, action.version, action.key, action.manifest, action.final)
    await store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))


async def publish_metrics(store: MessageStore, action: PublishMetrics) -> None:
    """Tell people where the job stands."""
    await store.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(action.metrics))


async def publish_event(store: MessageStore, event: CoordinatorEvent) -> None:
    """Put an event into the coordinator's queue."""
    await store.publish(Channel.EVENTS, _sender(event), COORDINATOR_EVENT.dump_json(event))


async def heartbeat(put: Callable[[], Awaitable[None]], changed: asyncio.Event) -> None:
    """Call `put` every second, and at once when `changed` is set."""
    while True:
        await put()
        changed.clear()
        # Not wait_for: in Python 3.11 it can swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await changed.wait()
