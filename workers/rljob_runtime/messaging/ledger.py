"""The ledger on a message store: one writer appends records, readers replay them from the newest snapshot.

The server stores a writer's append only directly after the writer's own last message (expected sequence and message
id), so a coordinator that was replaced can append nothing, not even when the server has lost the ledger's end and the
sequences are equal again by coincidence. Each message names the one before it; readers ignore a message that does not.
Each also has a digest of itself and of all before it, which the trainer puts into the manifests: a forger of the
ledger must rewrite those, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from rljob_core.errors import CorruptLedger, CorruptPayload, Fenced
from rljob_core.job_state import JobState, snapshot
from rljob_core.messages.limits import LARGEST_SNAPSHOT
from rljob_core.ports import MESSAGE_ID, Channel, Message, MessageStore
from rljob_core.records import EpochClaimed, Record, RecordBatch, Writer, decode_batch, encode_batch
from rljob_runtime.messaging.chunks import sequences_in

log = logging.getLogger(__name__)

CLAIM, RECORDS, SNAPSHOT, PART = "claim", "records", "snapshot", "part"
"""Suffixes of the ledger's messages: records that claim an epoch, other records, a snapshot's last part, its others."""
RECORDS_PER_MESSAGE = 256
SNAPSHOT_RECORDS, RECORDS_PER_GROUP = 50_000, 4
"""Records after which a snapshot is due; the more groups are open, the larger it is, and the rarer."""
PART_BYTES = 900_000

SILENCE_SECONDS = 60.0
"""Seconds that a reader waits for the next message it knows to be stored: longer than any reconnection takes."""

_AFTER = "Rljob-After"
CHAIN_DIGEST = "Rljob-Chain"
"""Header with the `chain_digest` up to and including the message."""
_PARTS = "Rljob-Parts"


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """The position of a message in the ledger: sequence, message id and chain digest; (0, "", "") before the first."""

    sequence: int = 0
    id: str = ""
    digest: str = ""


class Ledger:
    """One process's view of the ledger.

    Args:
        store: open.
        job: UID of the job whose ledger it must be.
        instance: of the coordinator that appends.
    """

    def __init__(self, store: MessageStore, *, job: str, instance: str) -> None:
        self._store = store
        self._job = job
        self._instance = instance
        self._end = LedgerPosition()
        self._lost = 0  # the last sequence of the messages behind the end that the server has lost
        self._appended = 0
        self._since_snapshot = 0

    @property
    def digest(self) -> str:
        """The chain digest of the newest message that this process has read or stored."""
        return self._end.digest

    @property
    def is_empty(self) -> bool:
        """Whether this process has neither read nor stored any message."""
        return not self._end.sequence

    async def replay(self, whole: JobState | None = None) -> JobState:
        """The state after all records up to the message that is the last one now.

        Args:
            whole: a fresh state to which all records are applied; if not given, reading starts at the newest snapshot.

        Raises:
            Fenced: the last message did not arrive: the server has lost the ledger's end meanwhile.
            CorruptLedger: a message does not decode, or belongs to another job; the error names its sequence.
        """
        # A server whose files were cut may know how far they went: it then has no message of its last sequence.
        known = await self._store.last_sequence(Channel.LEDGER)
        last = await self._store.last(Channel.LEDGER)
        self._lost = known if known > (last.sequence if last is not None else 0) else 0
        state, start = (whole, 1) if whole is not None else await self._newest_snapshot()
        if last is None:
            return state
        chain, owner = Chain(start), Owner(state.job, start)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENCE_SECONDS) as silence:
                async for messages in self._store.read(Channel.LEDGER, start=start):
                    silence.reschedule(loop.time() + SILENCE_SECONDS)
                    for message in messages:
                        if message.sequence <= last.sequence and chain.admits(message):
                            self._since_snapshot += fold(state, message, owner)
                    if messages[-1].sequence >= last.sequence:
                        break
        except TimeoutError as error:
            raise Fenced(f"the ledger was cut before message {last.sequence} was read") from error
        owner.check(self._job)
        # A coordinator that was replaced may have appended since; the claim then fails, as it must.
        self._end = _position(last)
        return state

    async def append(self, writer: Writer, records: Sequence[Record]) -> None:
        """Store records, in order. Without records it stores an empty message, which fails if the writer was replaced.

        Raises:
            Fenced: another coordinator has appended.
        """
        for start in range(0, max(len(records), 1), RECORDS_PER_MESSAGE):
            for data in _encoded(writer, records[start : start + RECORDS_PER_MESSAGE]):
                await self._publish(RECORDS, data, {})
        self._since_snapshot += len(records)

    async def claim(self, writer: Writer, records: Sequence[Record]) -> None:
        """Store the records that claim an epoch, directly after the message that was replayed last.

        Raises:
            Fenced: another coordinator has appended, or the server has replaced the message that was replayed last.
        """
        replayed = self._end
        batch = RecordBatch(writer, tuple(records))
        # The server forgets ids after its duplicate window, so the claim does not name the id of the last message. That
        # message is compared after the claim, when no other coordinator can append any more.
        await self._publish(CLAIM, encode_batch(batch), {}, compare=False)
        if replayed.sequence:
            (before,) = await self._store.get(Channel.LEDGER, [replayed.sequence])
            if before is None or _position(before) != replayed:
                raise Fenced("the ledger was cut and written again while it was read")
        if self._lost and (await self._store.get(Channel.LEDGER, [self._lost]))[0] is not None:
            raise Fenced("a message of the ledger that seemed to be lost is there")
        self._lost = 0

    async def snapshot_if_due(self, state: JobState) -> None:
        """Store a snapshot if enough records were appended since the last one, which bounds the time of a replay."""
        if self._since_snapshot < max(SNAPSHOT_RECORDS, RECORDS_PER_GROUP * len(state.groups)):
            return
        data = snapshot.dump(state)
        parts = [data[cut : cut + PART_BYTES] for cut in range(0, len(data), PART_BYTES)]
        sequences = []
        for part in parts[:-1]:
            await self._publish(PART, part, {})
            sequences.append(self._end.sequence)
        await self._publish(SNAPSHOT, parts[-1], {_PARTS: ",".join(map(str, sequences))})
        self._since_snapshot = 0
        log.info("snapshot of the ledger at message %d, %d bytes", self._end.sequence, len(data))

    async def _publish(
        self, suffix: str, data: bytes, headers: dict[str, str], *, compare: bool = True
    ) -> None:
        self._appended += 1
        identity = f"{self._instance}/{self._appended}"
        digest = chain_digest(self._end.digest, identity, suffix, data)
        sequence = await self._store.publish(
            Channel.LEDGER,
            suffix,
            data,
            headers={**headers, _AFTER: self._end.id, CHAIN_DIGEST: digest},
            message_id=identity,
            expected_sequence=max(self._end.sequence, self._lost),
            expected_id=self._end.id if compare and self._end.id else None,
        )
        self._end = LedgerPosition(sequence, identity, digest)

    async def _newest_snapshot(self) -> tuple[JobState, int]:
        """The state at which reading starts, and the first sequence to read."""
        message = await self._store.last(Channel.LEDGER, SNAPSHOT)
        if message is None:
            return JobState(), 1
        if not await self._is_chained(message):
            return JobState(), 1
        try:
            sequences = parts_before(message)
        except ValueError as error:
            log.warning("the snapshot at message %d: %s: reading from the start", message.sequence, error)
            return JobState(), 1
        parts = await self._store.get(Channel.LEDGER, sequences)
        if not all(parts):
            log.warning("the snapshot at message %d lacks a part: reading from the start", message.sequence)
            return JobState(), 1
        try:
            state = snapshot.load(b"".join([*(part.data for part in parts if part), message.data]))
        except ValueError as error:
            log.warning("the snapshot at message %d: %s: reading from the start", message.sequence, error)
            return JobState(), 1
        if state.job != self._job:  # reading from the start names the foreign record
            return JobState(), 1
        return state, message.sequence

    async def _is_chained(self, message: Message) -> bool:
        (before,) = await self._store.get(Channel.LEDGER, [message.sequence - 1])
        return before is not None and before.headers.get(MESSAGE_ID) == message.headers.get(_AFTER)


def fold(state: JobState, message: Message, owner: Owner) -> int:
    """Apply the records of a message that counts to a state; return how many there are.

    Args:
        state: of the messages before it.
        message: of the ledger, of any suffix.
        owner: of the messages before it; it follows the claims.

    Raises:
        CorruptLedger: it does not decode, or belongs to another job than the messages before it.
    """
    if message.suffix not in {CLAIM, RECORDS}:
        return 0
    batch = read_batch(message)
    owner.follow(batch.records, message.sequence)
    state.replay([batch])
    return len(batch.records)


@dataclass(slots=True)
class Owner:
    """The job that a ledger belongs to, by its claims, in order.

    A ledger that a backup was restored from begins with the claims of the former job, and the restore's own claim says
    that another one continues it.

    Attributes:
        job: UID; empty before the first claim.
        since: sequence of that job's first claim.
    """

    job: str = ""
    since: int = 0

    def follow(self, records: Iterable[Record], sequence: int) -> None:
        """Read the records of the message of that sequence.

        Raises:
            CorruptLedger: a claim is of another job than the one before it, and does not say that it continues it.
        """
        for claimed in records:
            if isinstance(claimed, EpochClaimed):
                before = claimed.former or claimed.job
                if self.job not in {"", before}:
                    raise _foreign(sequence, before, self.job)
                if self.job != claimed.job:
                    self.job, self.since = claimed.job, sequence

    def check(self, job: str) -> None:
        """Check that the ledger, read to its end, is this job's, or nobody's yet.

        Raises:
            CorruptLedger: it is not.
        """
        if self.job not in {"", job}:
            raise _foreign(self.since, self.job, job)


def _foreign(sequence: int, found: str, expected: str) -> CorruptLedger:
    return CorruptLedger(
        f"message {sequence} of the ledger is of the job {found}, not of {expected}: "
        "name this job's own output folder or NATS account"
    )


class Chain:
    """Decides by the headers which messages of a ledger count: those that follow the message that they name.

    A message that follows another one was written by a replaced coordinator and admitted by a server that had lost the
    ledger's end. After it nothing counts until the next claim.

    Args:
        start: sequence of the first message that will be given; if it is not 1, that message is known to count.
    """

    def __init__(self, start: int = 1) -> None:
        self._before: str | None = "" if start == 1 else None
        self._broken = False

    def admits(self, message: Message) -> bool:
        """Whether the next message, in the order of sequences, counts."""
        chained = self._before is None or message.headers.get(_AFTER) == self._before
        # The next claim follows this message, whether the message counts or not.
        self._before = message.headers.get(MESSAGE_ID, "")
        self._broken = not chained or (self._broken and message.suffix != CLAIM)
        return not self._broken


def chain_digest(before: str, identity: str, suffix: str, data: bytes) -> str:
    """Return the digest of a message and, through the digest of the message before it, of all that precede it.

    Args:
        before: chain digest of the message before it; "" for the first one.
        identity: id of the message.
        suffix: kind of the message.
        data: its payload.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (before.encode(), identity.encode(), suffix.encode(), data):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def parts_before(message: Message) -> list[int]:
    """Sequences of the messages that hold a snapshot's parts, in order; the last part is in `message` itself.

    Raises:
        ValueError: the header names other things, or more than a snapshot has.
    """
    try:
        return sequences_in(message.headers.get(_PARTS, ""), most=LARGEST_SNAPSHOT // PART_BYTES)
    except CorruptPayload as error:
        raise ValueError(str(error)) from error


def read_batch(message: Message) -> RecordBatch:
    """The records of a message.

    Raises:
        CorruptLedger: it does not decode; the message says what the user can do.
    """
    try:
        return decode_batch(message.data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = ": ".join(filter(None, (where, first["msg"])))
        what = (
            f"message {message.sequence} of the ledger was written by another release of rljob: use that one"
            if where == "version"
            else f"message {message.sequence} of the ledger is not a batch of records ({why}): restore "
            "the stream from a copy; `rljob audit` says what the rest of it holds"
        )
        raise CorruptLedger(what) from error


def _encoded(writer: Writer, records: Sequence[Record]) -> list[bytes]:
    """Records as the payload of one message, or of several where one would be too large."""
    data = encode_batch(RecordBatch(writer, tuple(records)))
    if len(data) <= PART_BYTES or len(records) < 2:
        return [data]
    middle = len(records) // 2
    return [*_encoded(writer, records[:middle]), *_encoded(writer, records[middle:])]


def _position(message: Message) -> LedgerPosition:
    headers = message.headers
    return LedgerPosition(message.sequence, headers.get(MESSAGE_ID, ""), headers.get(CHAIN_DIGEST, ""))
