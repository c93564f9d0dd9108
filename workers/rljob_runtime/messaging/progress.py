"""Progress of trajectories on a message store: tokens so far as a payload, what a coordinator needs of it as a header.

The channel keeps the newest message of a subject, and a trajectory has one subject, whatever its attempt: progress of
an engine that was taken for dead may replace that of its successor. It is known by its digest, so nobody goes on from
other tokens than the ledger says. Progress above the payload limit is cut (`chunks`); its chunks have subjects under
the trajectory's, which nobody else writes to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from rljob_core.actions import StoredProgress
from rljob_core.errors import CorruptPayload
from rljob_core.ports import Channel, Message, MessageStore
from rljob_core.records import Inherited
from rljob_core.trajectory import Trajectory
from rljob_runtime.messaging import chunks, wire
from rljob_runtime.messaging.chunks import PAYLOAD_BYTES

PROGRESS_HEADER = "Rljob-Progress"
#: Messages read at once: each may be as large as a payload.
_LOOKUPS = 32
_STORED = TypeAdapter(StoredProgress)


@dataclass(frozen=True, slots=True)
class PartialTrajectory:
    """What was generated of a trajectory, and by which weights: (version, manifest's digest)."""

    trajectory: Trajectory
    weights: tuple[tuple[int, str], ...]


class ProgressStore:
    """Progress on the channel `PROGRESS`.

    Args:
        store: an open message store.
        payload_bytes: largest payload of one message.
    """

    def __init__(self, store: MessageStore, *, payload_bytes: int = PAYLOAD_BYTES) -> None:
        self._store = store
        self._payload_bytes = payload_bytes
        self._chunks: dict[int, list[int]] = {}
        """Of messages that were put or gotten here, by their sequence."""
        self._reading = asyncio.Semaphore(_LOOKUPS)

    async def put(self, made: PartialTrajectory, *, seed: int, replaces: int = 0) -> int:
        """Store how far a trajectory has come, in the place of what was stored of it; the message's sequence.

        Args:
            made: what there is of it.
            seed: of its sample.
            replaces: the message that this one takes the place of, whose chunks go.

        Raises:
            StoreFull: the server has no room.
        """
        trajectory = made.trajectory
        packed = wire.pack(trajectory)
        # Its sequence is known to whoever reads it.
        inherited = Inherited(
            trajectory.attempt, trajectory.response_tokens, trajectory.span, seed, 0, packed.digest
        )
        pieces, data = chunks.cut(wire.join([packed]), self._payload_bytes)
        # Until the new message is there, the old one's chunks stay.
        under = f"{trajectory.id}.{trajectory.attempt}-{trajectory.response_tokens}"
        puts = (
            self._store.publish(Channel.PROGRESS, f"{under}.{n}", piece) for n, piece in enumerate(pieces)
        )
        cut = await asyncio.gather(*puts)
        header = _STORED.dump_json(StoredProgress(inherited, made.weights), ensure_ascii=True).decode()
        headers = {PROGRESS_HEADER: header} | chunks.chunk_headers(cut)
        sequence = await self._store.publish(Channel.PROGRESS, trajectory.id, data, headers=headers)
        if cut:
            self._chunks[sequence] = cut
        if old := self._chunks.pop(replaces, None):
            await self._store.delete(Channel.PROGRESS, old)
        return sequence

    async def newest(self, trajectory: str) -> StoredProgress | None:
        """How far a trajectory has come; None if nothing is stored of it that is whole."""
        async with self._reading:
            message = await self._store.last(Channel.PROGRESS, trajectory)
        found = None if message is None else await self._read(message)
        return None if found is None else found[0]

    async def get(self, trajectory: str, inherited: Inherited) -> PartialTrajectory | None:
        """What is to be gone on from; None if it is gone."""
        async with self._reading:
            (message,) = await self._store.get(Channel.PROGRESS, [inherited.sequence])
        if message is None or (found := await self._read(message)) is None:
            return None
        if found[0].inherited != inherited or found[1].id != trajectory:
            return None
        if cut := chunks.named(message):
            self._chunks[message.sequence] = cut
        return PartialTrajectory(found[1], found[0].weights)

    async def trajectories(self) -> tuple[str, ...]:
        """Of which trajectories there is any."""
        return tuple(dict.fromkeys(map(_owner, await self._store.suffixes(Channel.PROGRESS, ">"))))

    async def drop(self, trajectories: Sequence[str]) -> None:
        """Delete all that is stored of these."""
        dropped = set(trajectories)
        for suffix in await self._store.suffixes(Channel.PROGRESS, ">"):
            if _owner(suffix) in dropped:
                await self._store.purge(Channel.PROGRESS, suffix)

    async def delete(self, sequences: Sequence[int]) -> None:
        """Delete messages that were put or gotten here, with their chunks; those that were replaced are passed over."""
        cut = [chunk for sequence in sequences for chunk in self._chunks.pop(sequence, ())]
        await self._store.delete(Channel.PROGRESS, [*sequences, *cut])

    async def _read(self, message: Message) -> tuple[StoredProgress, Trajectory] | None:
        """What a message holds, verified; None if it does not decode."""
        try:
            said = _STORED.validate_json(message.headers.get(PROGRESS_HEADER, ""))
            ((trajectory, digest),) = wire.decode_verified(
                await chunks.whole(self._store, Channel.PROGRESS, message)
            )
        except (ValidationError, ValueError, CorruptPayload):
            return None
        if digest != said.inherited.digest:
            return None
        return replace(said, inherited=replace(said.inherited, sequence=message.sequence)), trajectory


def _owner(suffix: str) -> str:
    """The trajectory of a message or of a chunk."""
    return ".".join(suffix.split(".")[:2])
