"""Message servers that lose the end of a stream, in memory and as real nats-servers."""

from __future__ import annotations

from pathlib import Path

from cut_files import cut_messages, cut_removals, damage_descriptions, damage_states, stream_folder
from e2e.harness.nats_server import EmbeddedServer
from tests.memory.store import MemoryServer, MemoryStore

from rljob_core.ports import Channel, MessageStore
from rljob_runtime.messaging.nats.store import NatsStore

SIGNALS = "signals"


class MemoryWorld:
    """A job on the store in memory."""

    def __init__(self) -> None:
        self._server = MemoryServer()
        self.job = self._server.job("j")

    async def connect(self) -> MessageStore:
        return MemoryStore(self._server, subject="j")

    async def restart(self) -> None:
        self.job.restart()

    async def lose(self, channel: Channel, *, messages: int, damaged: str = "") -> None:
        self.job.cut(channel, self.job.streams[channel].last - messages)

    async def lose_signals(self, changes: int) -> None:
        self.job.cut_signals(self.job.signals.last - changes)

    async def lose_removals(self, channel: Channel, count: int) -> None:
        self.job.cut(channel, self.job.streams[channel].last, undone=count)

    async def close(self) -> None: ...


class NatsWorld:
    """A job on a server of its own, which dies with its machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmbeddedServer(folder)
        self._opened: list[NatsStore] = []

    async def connect(self) -> NatsStore:
        store = NatsStore(self.server.url, subject="rljob.j", stream_prefix="RLJOB_j")
        await store.open()
        self._opened.append(store)
        return store

    async def restart(self) -> None:
        await self.server.kill()
        await self.server.start()

    async def lose(self, channel: Channel, *, messages: int, damaged: str = "") -> None:
        """Kill the server, and lose the newest messages.

        Args:
            damaged: what else was not synced: "states" of queues, descriptions of "queues", that of the "stream".
        """
        await self.server.kill()
        cut_messages(stream_folder(self.folder, channel.value), messages)
        folder = stream_folder(self.folder, channel.value)
        damage_descriptions(folder, stream="stream" in damaged, queues="queues" in damaged)
        if "states" in damaged:
            damage_states(folder)
        await self.server.start()
        if damaged:
            await self.connect()  # it creates the streams that are missing

    async def lose_signals(self, changes: int) -> None:
        await self.server.kill()
        cut_messages(stream_folder(self.folder, SIGNALS), changes)
        await self.server.start()

    async def lose_removals(self, channel: Channel, count: int) -> None:
        await self.server.kill()
        assert cut_removals(stream_folder(self.folder, channel.value)) == count
        await self.server.start()

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        await self.server.kill()


World = MemoryWorld | NatsWorld


async def contents(store: MessageStore, channel: Channel) -> list[str]:
    """All that is stored."""
    last = await store.last_sequence(channel)
    return [m.data.decode() for m in await store.get(channel, range(1, last + 1)) if m]
