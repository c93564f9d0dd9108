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
    DeletePayloads,
    DeleteRewards,
    Observation,
    OwnHeartbeat,
    PayloadSeen,
    PipelineChanged,
    PublishMetrics,
    RetireEngine,
    RewardsSeen,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.messages import (
    COORDINATOR_EVENT,
    COORDINATOR_SIGNAL,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    ENGINE_WORK,
    REWARD_BATCH,
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
from rljob_core.planner import Decision, Planner
from rljob_core.ports import Channel, Delivery, MessageStore
from rljob_core.records import Record, RecordBatch, Writer, decode_batch, encode_batch
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import is_evaluation
from rljob_runtime.trajectory_store import TrajectoryStore

log = logging.getLogger(__name__)

RECORDS_PER_MESSAGE = 256
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
        render: Render,
        *,
        instance: str,
        prefetch: float = 0.25,
        changes: AsyncIterator[PipelineSpec] | None = None,
    ) -> None:
        """
        Args:
            changes: of `spec.pipeline` while the job runs.
        """
        self._changes = changes
        self._store = store
        self._render = render
        self._instance = instance
        self._planner = Planner(config, prefetch=prefetch)
        self._trajectories = TrajectoryStore(store)
        self._inbox: asyncio.Queue[tuple[Observation, Delivery | None]] = asyncio.Queue()
        self._sequence = 0

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Recover from the ledger, claim an epoch, go on for ever.

        Raises:
            Fenced: another coordinator has claimed a newer epoch.
            StoreUnavailable: the message store is away for too long.
        """
        now = asyncio.get_running_loop().time
        await self._replay()
        await self._perform(self._planner.start(self._instance, now()))
        log.info("writer epoch %d at version %d", self._planner.epoch, self._planner.state.version)
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
                await self._perform(self._planner.decide([o for o, _ in batch], now()))
                await asyncio.gather(*(d.ack() for _, d in batch if d is not None))

    # ------------------------------------------------------------------------------------------ ledger

    async def _replay(self) -> None:
        last = await self._store.last_sequence(Channel.LEDGER)
        if last:
            async for messages in self._store.read(Channel.LEDGER):
                self._planner.state.replay(decode_batch(m.data) for m in messages if m.sequence <= last)
                self._sequence = messages[-1].sequence
                if self._sequence >= last:
                    break
        # A zombie may have appended since; the claim below then fails as it must.
        self._sequence = last

    async def _append(self, records: Sequence[Record]) -> None:
        writer = Writer(self._planner.epoch, self._instance)
        for start in range(0, len(records), RECORDS_PER_MESSAGE):
            data = encode_batch(RecordBatch(writer, tuple(records[start : start + RECORDS_PER_MESSAGE])))
            self._sequence = await self._store.publish(
                Channel.LEDGER, "records", data, expected_sequence=self._sequence
            )

    async def _perform(self, decision: Decision) -> None:
        if decision.records:
            await self._append(decision.records)
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
                announced = VersionAnnounced(action.version, action.key, action.manifest, action.final)
                await store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))
            case DeletePayloads():
                await self._trajectories.delete(action.sequences)
            case DeleteRewards():
                await store.delete(Channel.REWARDS, action.sequences)
            case RetireEngine():
                await store.purge(Channel.WORK, f"engine.{action.engine}")
                await store.delete_signal(ENGINE_SIGNALS + action.engine)
            case PublishMetrics():
                await store.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(action.metrics))

    def _with_text(self, work: EngineWork) -> EngineWork:
        if isinstance(work, Generate):
            return replace(work, text=self._render(work.prompt, is_evaluation(work.trajectory)))
        return work

    # ------------------------------------------------------------------------------------------ inputs

    async def _read_payloads(self) -> None:
        # From the first message that is left: after a restart this takes back what survived.
        async for located in self._trajectories.summaries():
            for sequence, message in groupby(located, key=lambda found: found.sequence):
                summaries = tuple(
                    Summary(s.trajectory, s.attempt, s.span, s.tokens, s.response_tokens, s.digest)
                    for s in (found.summary for found in message)
                )
                await self._inbox.put((PayloadSeen(sequence, summaries), None))

    async def _read_rewards(self) -> None:
        async for messages in self._store.read(Channel.REWARDS):
            for message in messages:
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
        if self._changes is None:
            return
        async for pipeline in self._changes:
            log.info(
                "spec.pipeline is now %s with maxStaleness %d, for the buffers that are opened from now on",
                pipeline.mode,
                pipeline.bound,
            )
            await self._inbox.put((PipelineChanged(pipeline), None))

    async def _beat(self) -> None:
        while True:
            await self._store.put_signal(COORDINATOR_SIGNAL, self._instance.encode())
            await asyncio.sleep(HEARTBEAT_SECONDS)


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
