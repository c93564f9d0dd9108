"""Reads a job's ledger for a backup: all of it once, and then what was appended since."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from rljob_cli.backup.index import StreamSegment
from rljob_cli.backup.messages import SegmentWriter, stored_messages
from rljob_core.errors import SpecError, StreamCut
from rljob_core.job_state.versioned import VersionedState
from rljob_core.ports import MESSAGE_ID, Channel, Message
from rljob_runtime.messaging.ledger import CLAIM, Chain, Owner, fold
from rljob_runtime.messaging.nats.store import NatsStore


class LedgerCopy:
    """The ledger up to the message that was its newest when it was read last.

    Args:
        uid: of the job.
        earlier: what an earlier backup has of it.
        writer: writes what that has not.

    Attributes:
        state: the fold of its records.
        last_sequence: of its newest message; 0 without any.
        claim: sequence of the newest claim; 0 without any.
    """

    def __init__(self, uid: str, earlier: Sequence[StreamSegment], writer: SegmentWriter) -> None:
        self._uid = uid
        self._chain = Chain()
        self._owner = Owner()
        self._newest_id = ""
        self._passed = 0
        self._earlier = tuple(earlier)
        self._writer = writer
        self.state = VersionedState()
        self.last_sequence = 0
        self.claim = 0

    async def catch_up(self, store: NatsStore) -> None:
        """Read what was appended since the last call.

        Raises:
            StreamCut: the server has lost what was read before: begin with a new copy.
            SpecError: the earlier backup's ledger is not how this one begins.
            CorruptLedger: a message does not decode, or is another job's.
            StoreUnavailable: the server does not answer.
        """
        if self.last_sequence:
            (newest,) = await store.get(Channel.LEDGER, [self.last_sequence])
            if newest is None or newest.headers.get(MESSAGE_ID) != self._newest_id:
                raise StreamCut(
                    "the ledger",
                    passed=self.last_sequence,
                    last=await store.last_sequence(Channel.LEDGER),
                )
        start = self.last_sequence + 1
        async with aclosing(stored_messages(store, Channel.LEDGER, start=start)) as messages:
            async for message in messages:
                await self._add(message)
        self._owner.check(self._uid)
        if self._passed < len(self._earlier):
            raise SpecError(
                "TARGET",
                "the job's ledger does not continue that of the backup there: it has lost its newest records since, or "
                "this is another copy of the job. Keep that backup, and name another place",
            )

    async def segments(self) -> tuple[StreamSegment, ...]:
        """Return the files that hold what was read: those of the earlier backup, and new ones."""
        return (*self._earlier, *await self._writer.flush())

    async def _add(self, message: Message) -> None:
        self.last_sequence, self._newest_id = message.sequence, message.headers.get(MESSAGE_ID, "")
        if message.suffix == CLAIM:
            self.claim = message.sequence
        if self._chain.admits(message):
            fold(self.state, message, self._owner)
        if self._passed == len(self._earlier):
            await self._writer.add(message)
            return
        # Each message names the one before it: what ends with the same message is the same.
        segment = self._earlier[self._passed]
        self._passed += (segment.last, segment.last_id) == (message.sequence, self._newest_id)
