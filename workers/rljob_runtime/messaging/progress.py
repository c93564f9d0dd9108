"""Stores unfinished trajectories: their tokens as payloads, what the coordinator needs of them in headers.

The channel keeps the newest message of each subject, and all attempts of a trajectory share a subject, so an engine
that was wrongly taken for dead may replace the progress of its successor. The ledger names progress by its digest: no
engine continues from other tokens than the ledger says. Progress above the payload limit is cut (`chunks`); the chunks
have subjects below that of the trajectory, one per attempt and length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from rljob_core.actions import StoredProgress
from rljob_core.errors import CorruptPayload
from rljob_core.messages import site_mark
from rljob_core.messages.limits import MESSAGE_BYTES, longest_payload, within_limits
from rljob_core.ports import Channel, Message, MessageStore
from rljob_core.records import Inherited
from rljob_core.spec import LONGEST_RESPONSE
from rljob_core.trajectory import Trajectory
from rljob_runtime.messaging import chunks, wire
from rljob_runtime.messaging.refusal_log import Refusals

PROGRESS_HEADER = "Rljob-Progress"
#: Messages read at once, and payloads put together from chunks at once: a lookup may find the largest of all.
_LOOKUPS, _WHOLE = 32, 4
#: Suffixes purged at once: of what engines at another site have ended, this server has all.
_PURGES = 32
_STORED = TypeAdapter(StoredProgress)
#: Seeds of samples are below this number.
_SEEDS = 1 << 31


@dataclass(frozen=True, slots=True)
class PartialTrajectory:
    """An unfinished trajectory.

    Attributes:
        trajectory: the tokens so far.
        weights: version and manifest digest of all weights that generated them.
        sequence: of the message that stores it, on the server that was asked; 0 if it is not stored.
    """

    trajectory: Trajectory
    weights: tuple[tuple[int, str], ...]
    sequence: int = 0


class ProgressStore:
    """Progress on the channel `PROGRESS`.

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
        self._chunks: dict[int, tuple[int, ...]] = {}
        """Sequences of the chunks of each message that this object put or got, by the message's sequence."""
        self._refusals = Refusals()
        self._reading, self._assembling = asyncio.Semaphore(_LOOKUPS), asyncio.Semaphore(_WHOLE)

    async def put(self, partial: PartialTrajectory, *, seed: int, replaces: int = 0) -> int:
        """Store the progress of a trajectory, which replaces its earlier progress; returns the message's sequence.

        Args:
            partial: the tokens so far.
            seed: of the trajectory's sample.
            replaces: sequence of the message that this one replaces, whose chunks are deleted.

        Raises:
            StoreFull: the server has no room.
        """
        trajectory = partial.trajectory
        packed = wire.pack(trajectory)
        inherited = Inherited(
            trajectory.attempt, trajectory.response_tokens, trajectory.span, seed, packed.digest
        )
        pieces, data = chunks.cut(wire.join([packed]), self._payload_bytes)
        # The chunks of the earlier progress are kept until the new message is stored.
        name = f"{trajectory.attempt}-{trajectory.response_tokens}"
        suffixes = chunks.chunk_suffixes(trajectory.id, name, len(pieces))
        puts = (self._store.publish(Channel.PROGRESS, *one) for one in zip(suffixes, pieces, strict=True))
        cut = tuple(await asyncio.gather(*puts))
        header = _STORED.dump_json(StoredProgress(inherited, partial.weights), ensure_ascii=True).decode()
        headers = {PROGRESS_HEADER: header} | chunks.chunk_headers(name, len(pieces))
        sequence = await self._store.publish(Channel.PROGRESS, trajectory.id, data, headers=headers)
        if cut:
            self._chunks[sequence] = cut
        if old := self._chunks.pop(replaces, None):
            await self._store.delete(Channel.PROGRESS, old)
        return sequence

    async def newest(self, trajectory: str) -> StoredProgress | None:
        """The newest progress of a trajectory, without its tokens; None if none is stored, or if it does not decode."""
        async with self._reading:
            message = await self._store.last(Channel.PROGRESS, trajectory)
            found = None if message is None else await self._read(message)
        return None if found is None or found[1].id != trajectory else found[0]

    async def get(self, trajectory: str, inherited: Inherited) -> PartialTrajectory | None:
        """The progress that an assignment continues; None if it is no longer the newest of the trajectory.

        Args:
            trajectory: its id.
            inherited: what the ledger says of the progress.
        """
        async with self._reading:
            (message,) = await self._store.newest(Channel.PROGRESS, [trajectory])
            found = await self._inherited(message, trajectory, inherited)
            if (
                message is not None and found is None
            ):  # of a replica that is behind; the leader has the newest
                message = await self._store.last(Channel.PROGRESS, trajectory)
                found = await self._inherited(message, trajectory, inherited)
            return found

    async def _inherited(
        self, message: Message | None, trajectory: str, inherited: Inherited
    ) -> PartialTrajectory | None:
        """The progress in a message, if it is what the ledger says."""
        found = None if message is None else await self._read(message)
        if message is None or found is None:
            return None
        stored, value, cut = found
        if stored.inherited != inherited or value.id != trajectory:
            return None
        if cut:
            self._chunks[message.sequence] = cut
        return PartialTrajectory(value, stored.weights, message.sequence)

    async def trajectories(self) -> tuple[str, ...]:
        """The trajectories of which progress is stored."""
        owners = map(_owner, await self._store.suffixes(Channel.PROGRESS, ">"))
        return tuple(dict.fromkeys(owner for owner in owners if not owner.startswith(site_mark(""))))

    async def drop(self, trajectories: Sequence[str]) -> None:
        """Delete all progress of these trajectories."""
        dropped = set(trajectories)
        stored = await self._store.suffixes(Channel.PROGRESS, ">")
        over = [suffix for suffix in stored if _owner(suffix) in dropped]
        for first in range(0, len(over), _PURGES):
            purges = (self._store.purge(Channel.PROGRESS, suffix) for suffix in over[first : first + _PURGES])
            await asyncio.gather(*purges)

    async def delete(self, sequences: Sequence[int]) -> None:
        """Delete messages that this object put or got, with their chunks; messages that were replaced are ignored."""
        cut = [chunk for sequence in sequences for chunk in self._chunks.pop(sequence, ())]
        await self._store.delete(Channel.PROGRESS, [*sequences, *cut])

    async def _read(self, message: Message) -> tuple[StoredProgress, Trajectory, tuple[int, ...]] | None:
        """The header and the trajectory of a message, verified, and its chunks; None if it does not decode."""
        try:
            header = within_limits(_STORED.validate_json(message.headers.get(PROGRESS_HEADER, "")))
            async with self._assembling:
                payload = await chunks.whole(
                    self._store,
                    Channel.PROGRESS,
                    message,
                    place=message.suffix,
                    largest=self._largest,
                    payload_bytes=self._payload_bytes,
                )
                ((trajectory, digest),) = wire.decode_verified(payload.data)
        except (ValidationError, ValueError, CorruptPayload) as error:
            self._refusals.add(Channel.PROGRESS, message.data, f"{message.suffix}: {error}")
            return None
        said = header.inherited
        made = (trajectory.attempt, trajectory.response_tokens, trajectory.span, digest)
        # What the header says would be in the ledger, and the seed is an engine's to use.
        if (said.attempt, said.tokens, said.span, said.digest) != made or not 0 <= said.seed < _SEEDS:
            return None
        return header, trajectory, payload.chunks


def _owner(suffix: str) -> str:
    """The trajectory that a message or a chunk with this suffix belongs to."""
    return ".".join(suffix.split(".")[:2])
