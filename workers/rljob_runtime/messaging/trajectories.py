"""Stores trajectories on a message store: several per message, large ones in chunks, with summaries in headers.

The header `Rljob-Summary` of a message holds what the coordinator needs of each trajectory in it: the coordinator reads
no payloads. A trajectory above the payload limit is cut (`chunks`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import xxhash
from pydantic import ValidationError

from rljob_core.errors import CorruptPayload
from rljob_core.messages import SCORE_GROUP, ScoreGroup
from rljob_core.messages.limits import (
    MESSAGE_BYTES,
    MESSAGE_TRAJECTORIES,
    longest_payload,
)
from rljob_core.ports import Channel, Delivery, Message, MessageStore, Queue
from rljob_core.spec import LONGEST_RESPONSE
from rljob_core.trajectory import Trajectory
from rljob_runtime.messaging import chunks, wire
from rljob_runtime.messaging.payload_index import (
    ABSENT,
    CHUNK,
    DRAINED,
    GROUP,
    PAYLOAD,
    SUMMARY_HEADER,
    PayloadIndex,
    StreamItem,
    engine_headers,
    owner_headers,
)
from rljob_runtime.messaging.refusal_log import Refusals
from rljob_runtime.messaging.summaries import decode_summaries, encode_summaries, summarize
from rljob_runtime.messaging.wire import Packed

#: Bytes of payloads that one fetch puts together; what was fetched besides is the next fetch's.
_FETCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Location:
    """The position of a payload: its message, its index in the message and the digest that it must have."""

    sequence: int
    index: int
    digest: str


@dataclass(frozen=True, slots=True)
class TrajectoryDelivery:
    """A message of trajectories from a queue.

    Attributes:
        trajectories: in the message; empty if its payload does not decode.
        digests: of the trajectories.
        delivery: acknowledges the message.
        lost: trajectory, attempt and digest of the payloads that do not decode, or are gone.
        size: bytes of the payload, its chunks included.
    """

    trajectories: tuple[Trajectory, ...]
    digests: tuple[str, ...]
    delivery: Delivery
    lost: tuple[tuple[str, int, str], ...] = ()
    size: int = 0

    async def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        await self.delivery.ack()

    async def retry(self, delay: float) -> None:
        """Ask for the message to be delivered again after `delay` seconds."""
        await self.delivery.retry(delay)

    async def in_progress(self) -> None:
        """Restart the message's acknowledgement timer."""
        await self.delivery.in_progress()


class TrajectoryStore:
    """Trajectories on the channel `TRAJECTORIES`.

    Args:
        store: an open message store.
        payload_bytes: largest payload of one message.
        max_tokens: of a response: it bounds the payloads that are put together from chunks.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        payload_bytes: int = MESSAGE_BYTES,
        max_tokens: int = LONGEST_RESPONSE,
    ) -> None:
        self._store = store
        self._payload_bytes = payload_bytes
        self._largest = longest_payload(max_tokens)
        self._refusals = Refusals()
        self._index = PayloadIndex()

    async def put(self, trajectories: Sequence[Trajectory]) -> None:
        """Store trajectories in as few messages as the payload limit allows; all are acknowledged on return.

        Payloads that are put again are stored once.

        Raises:
            StoreFull: the stream is at its limit; some may have been stored.
            StoreUnavailable: the server cannot be reached.
        """
        packed = [wire.pack(trajectory) for trajectory in trajectories]
        batches = self._batches(packed)
        if len(batches) == 1:  # mostly; a task for it would cost as much as the rest
            await self._put(batches[0])
        else:
            await asyncio.gather(*map(self._put, batches))

    async def put_absence(self, trajectory: str, attempt: int, *, engine: str) -> None:
        """Store the message that an engine has no (further) payload of an assignment; it follows all its payloads.

        Raises:
            StoreFull: the stream is at its limit.
            StoreUnavailable: the server cannot be reached.
        """
        headers = owner_headers(trajectory, attempt) | engine_headers(engine)
        await self._store.publish(Channel.TRAJECTORIES, ABSENT, b"", headers=headers)

    async def put_end(self, engine: str) -> None:
        """Store the message that an engine stores no further payload; all before must be acknowledged.

        Raises:
            StoreFull: the stream is at its limit.
            StoreUnavailable: the server cannot be reached.
        """
        await self._store.publish(Channel.TRAJECTORIES, DRAINED, b"", headers=engine_headers(engine))

    async def put_group(self, group: ScoreGroup) -> None:
        """Store the request to score a group, which a queue over groups delivers; it is deleted with its first answer.

        Raises:
            StoreFull: the stream is at its limit.
            StoreUnavailable: the server cannot be reached.
        """
        first = group.members[0]
        headers = owner_headers(first.trajectory, first.attempt)
        data = SCORE_GROUP.dump_json(group)
        await self._store.publish(Channel.TRAJECTORIES, GROUP, data, headers=headers)

    async def summaries(self, start: int = 1) -> AsyncIterator[list[StreamItem]]:
        """Summaries from sequence `start` on, in order and without end; only headers are read.

        Messages whose header does not decode are counted as dead letters.
        """
        async for messages in self._store.read(Channel.TRAJECTORIES, start=start, headers_only=True):
            if located := [item for message in messages for item in self._items(message)]:
                yield located

    def _items(self, message: Message) -> list[StreamItem]:
        try:
            return self._index.add(message)
        except CorruptPayload as error:
            self.refuse(message, str(error))
            return []

    async def get(self, locations: Sequence[Location]) -> list[Trajectory | None]:
        """Trajectories by location.

        None for a payload that is gone, does not decode (a dead letter), or has another digest.
        """
        sequences = list(dict.fromkeys(location.sequence for location in locations))
        messages = await self._store.get(Channel.TRAJECTORIES, sequences)
        decoded = {}
        for sequence, message in zip(sequences, messages, strict=True):
            if message is not None:
                decoded[sequence] = await self.decode(message)
        found: list[Trajectory | None] = []
        for location in locations:
            payloads = decoded.get(location.sequence) or []
            trajectory, digest = payloads[location.index] if location.index < len(payloads) else (None, "")
            found.append(trajectory if digest == location.digest else None)
        return found

    async def queue(self, name: str, *, ack_wait: float = 30.0, max_pending: int = 1000) -> TrajectoryQueue:
        """The durable queue `name` over all trajectories, shared by its readers."""
        queue = await self._store.queue(
            Channel.TRAJECTORIES, PAYLOAD, name=name, ack_wait=ack_wait, max_pending=max_pending
        )
        return TrajectoryQueue(self, queue)

    async def group_queue(
        self, name: str, *, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> TrajectoryGroupQueue:
        """The durable queue `name` over all requests to score a group, shared by its readers."""
        queue = await self._store.queue(
            Channel.TRAJECTORIES, GROUP, name=name, ack_wait=ack_wait, max_pending=max_pending
        )
        return TrajectoryGroupQueue(self, queue)

    async def delete(self, sequences: Sequence[int]) -> None:
        """Delete messages whose trajectories are no longer needed, with their chunks.

        Chunks are those that `summaries` has read: of the messages' attempts and of all earlier ones, whose payloads
        may never have been completed.
        """
        chunks_too = [*sequences, *self._index.pop_chunks(sequences)]
        await self._store.delete(Channel.TRAJECTORIES, chunks_too)

    # ------------------------------------------------------------------------------------- messages

    def _batches(self, packed: Iterable[Packed]) -> list[list[Packed]]:
        batches: list[list[Packed]] = []
        room = 0
        for item in packed:
            if not batches or item.size > room or len(batches[-1]) == MESSAGE_TRAJECTORIES:
                batches.append([])
                room = self._payload_bytes - wire.OVERHEAD
            batches[-1].append(item)
            room -= item.size
        return batches

    async def _put(self, batch: Sequence[Packed]) -> None:
        data = wire.join(batch)
        headers = {SUMMARY_HEADER: encode_summaries([summarize(item) for item in batch])}
        # With digests: an attempt that was generated again with other weights is another payload.
        names = "/".join(f"{i.trajectory.id}@{i.trajectory.attempt}:{i.digest}" for i in batch)
        identity = xxhash.xxh3_128_hexdigest(names.encode())
        pieces, data = chunks.cut(data, self._payload_bytes)
        if pieces:
            (item,) = batch
            owner = owner_headers(item.trajectory.id, item.trajectory.attempt)
            put = partial(self._store.publish, Channel.TRAJECTORIES, headers=owner)
            suffixes = chunks.chunk_suffixes(CHUNK, identity, len(pieces))
            numbered = enumerate(zip(suffixes, pieces, strict=True))
            await asyncio.gather(
                *(put(suffix, piece, message_id=f"{identity}/{n}") for n, (suffix, piece) in numbered)
            )
            headers |= chunks.chunk_headers(identity, len(pieces))
        await self._store.publish(Channel.TRAJECTORIES, PAYLOAD, data, headers=headers, message_id=identity)

    async def decode(self, message: Message) -> list[tuple[Trajectory, str]] | None:
        """Trajectories and digests of a message; None if it does not decode, which is counted as a dead letter."""
        found = await self.read(message)
        return None if found is None else found[0]

    async def read(self, message: Message) -> tuple[list[tuple[Trajectory, str]], int] | None:
        """What `decode` returns, and the bytes of the payload."""
        try:
            payload = await chunks.whole(
                self._store,
                Channel.TRAJECTORIES,
                message,
                place=CHUNK,
                largest=self._largest,
                payload_bytes=self._payload_bytes,
            )
            return wire.decode_verified(payload.data), len(payload.data)
        except CorruptPayload as error:
            self.refuse(message, str(error))
            return None

    def refuse(self, message: Message, why: str) -> None:
        """Count a message as a dead letter."""
        self._refusals.add(f"{Channel.TRAJECTORIES}.{message.suffix}", message.data, why)


class TrajectoryQueue:
    """A durable queue whose messages are delivered decoded."""

    def __init__(self, store: TrajectoryStore, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._fetched: deque[Delivery] = deque()

    async def fetch(
        self, *, messages: int, max_bytes: int = 8 << 20, timeout: float = 1.0
    ) -> list[TrajectoryDelivery]:
        """At least one message of trajectories as soon as there is one; none after `timeout` seconds.

        A message that does not decode is counted as a dead letter; if nothing says which trajectories it is about, it
        is acknowledged and not returned.
        """
        if not self._fetched:
            self._fetched += await self._queue.fetch(messages=messages, max_bytes=max_bytes, timeout=timeout)
        fetched: list[TrajectoryDelivery] = []
        size = 0
        while self._fetched and len(fetched) < messages and size < _FETCH_BYTES:
            delivery = self._fetched.popleft()
            try:
                found = await self._read(delivery)
            except CorruptPayload:
                await delivery.ack()
                continue
            fetched.append(found)
            size += found.size
        return fetched

    async def _read(self, delivery: Delivery) -> TrajectoryDelivery:
        """What a message holds.

        Raises:
            CorruptPayload: nothing says which trajectories it is about.
        """
        found = await self._store.read(delivery.message)
        if found is None:
            lost = decode_summaries(delivery.message.headers.get(SUMMARY_HEADER, ""))
            names = tuple((one.trajectory, one.attempt, one.digest) for one in lost)
            return TrajectoryDelivery((), (), delivery, names)
        payloads, size = found
        return _delivery(payloads, delivery, size=size)


class TrajectoryGroupQueue(TrajectoryQueue):
    """A durable queue of requests to score a group, each delivered with the answers that it names."""

    async def _read(self, delivery: Delivery) -> TrajectoryDelivery:
        try:
            members = SCORE_GROUP.validate_json(delivery.message.data).members
        except ValidationError as error:  # a stranger has written it
            words = f"no group to score: {error.errors()[0]['msg']}"
            self._store.refuse(delivery.message, words)
            raise CorruptPayload(words) from error
        found = await self._store.get([Location(m.sequence, m.index, m.digest) for m in members])
        stored, lost = list[tuple[Trajectory, str]](), list[tuple[str, int, str]]()
        for member, trajectory in zip(members, found, strict=True):
            if trajectory is None:
                lost.append((member.trajectory, member.attempt, member.digest))
            else:
                stored.append((trajectory, member.digest))
        size = sum(segment.tokens.nbytes for one, _ in stored for segment in one.segments)
        return _delivery(stored, delivery, lost=tuple(lost), size=size)


def _delivery(
    payloads: Sequence[tuple[Trajectory, str]],
    delivery: Delivery,
    *,
    lost: tuple[tuple[str, int, str], ...] = (),
    size: int,
) -> TrajectoryDelivery:
    trajectories, digests = zip(*payloads, strict=True) if payloads else ((), ())
    return TrajectoryDelivery(trajectories, digests, delivery, lost, size)
