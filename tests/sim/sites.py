"""Sites of a simulated job: each has a server of its own, and a link to the hub's that is slow or cut at times.

The link carries the messages of each stream in order, and loses none: those that a site stores (trajectories, events,
progress, signals) to the hub's streams, and announcements and the site's work from there. While a direction is cut,
they wait; payloads and progress wait also while the link is slow, and signals and events pass them. Only the
coordinator's beats and marks are lost if they are sent into a cut. Weights come on their own way, and may be later than
their announcement.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.memory.changes import matches
from tests.memory.store import MemoryJob, MemoryServer, MemoryStore
from tests.memory.streams import StoredStream
from tests.memory.weights import MemoryReader, MemoryTransport

from rljob_core.errors import StoreFull, WeightsMissing
from rljob_core.messages import SITE_SIGNALS
from rljob_core.ports import MESSAGE_ID, Channel, Message
from rljob_runtime.messaging.payload_index import PAYLOAD, SUMMARY_HEADER
from rljob_runtime.messaging.summaries import decode_summaries

UP, DOWN = "up", "down"
"""To the hub, and from it."""
SLOW = (Channel.TRAJECTORIES.value, Channel.PROGRESS.value)
"""Streams of which a backlog takes its time."""


@dataclass(frozen=True)
class Cut:
    """A direction of a link is cut from a time on, for so many seconds."""

    direction: str
    at: float
    seconds: float


@dataclass(frozen=True)
class SiteFaults:
    """One site.

    Attributes:
        name: of the site, and of its pool.
        engines: how many it has.
        delay: seconds that everything takes in each direction.
        weights: seconds that a version takes besides, at most.
        cuts: of its link.
        rate: bytes that payloads, and progress, take up the link in a second; signals and events pass them.
    """

    name: str
    engines: int
    delay: float = 0.0
    weights: float = 0.0
    cuts: tuple[Cut, ...] = ()
    rate: float = math.inf

    @property
    def longest(self) -> float:
        """Seconds for which a beat may fail to come back, if each cut is apart from the others."""
        return 2 * self.delay + sum(cut.seconds for cut in self.cuts)


class OutboxStore(MemoryStore):
    """A client of a site's server, which notes the payloads that are stored there.

    Args:
        payloads: takes the attempts of which payloads are stored, with the tokens of each.
    """

    def __init__(self, server: MemoryServer, *, subject: str, payloads: dict[tuple[str, int], int]) -> None:
        super().__init__(server, subject=subject)
        self._payloads = payloads

    async def publish(self, channel: Channel, suffix: str, data: bytes, **options: Any) -> int:
        sequence = await super().publish(channel, suffix, data, **options)
        if channel is Channel.TRAJECTORIES and suffix == PAYLOAD:
            summaries = decode_summaries(options["headers"][SUMMARY_HEADER])
            self._payloads |= {(s.trajectory, s.attempt): s.response_tokens for s in summaries}
        return sequence


class CopiedWeights(MemoryTransport):
    """A site's copies of the hub's weights; `arrived` are the keys of those that are whole."""

    def __init__(self, hub: MemoryTransport) -> None:
        super().__init__(hub.tensors, hub.manifests)
        self.arrived: set[str] = set()

    @contextmanager
    def reader(self, key: str) -> Iterator[MemoryReader]:
        if key not in self.arrived:
            raise WeightsMissing(f"the tensors of {key} are not there yet")
        with super().reader(key) as reader:
            yield reader

    def manifest(self, key: str) -> bytes | None:
        return super().manifest(key) if key in self.arrived else None


class SimulatedSite:
    """One site, from `start` on.

    Attributes:
        server: of the site.
        weights: the copies there.
        latest_work: the longest time for which the link had been cut when work was sent to the site; seconds.
        payloads: the attempts of which the site has stored payloads, with the tokens of each.
        marks: how many marks the coordinators have sent by way of the site.
    """

    def __init__(
        self,
        faults: SiteFaults,
        hub: MemoryJob,
        stored: MemoryTransport,
        *,
        subject: str,
        chance: random.Random,
        happened: Counter[str],
    ) -> None:
        self.faults, self.server = faults, MemoryServer()
        self.weights = CopiedWeights(stored)
        self.latest_work = 0.0
        self.payloads: dict[tuple[str, int], int] = {}
        self.marks = 0
        self._subject = subject
        self._hub, self._here = hub, self.server.job(subject)
        self._chance, self._happened = chance, happened
        self._begun = 0.0
        self.tasks: list[asyncio.Task[None]] = []

    def store(self) -> MemoryStore:
        """A connection to the site's server."""
        return OutboxStore(self.server, subject=self._subject, payloads=self.payloads)

    def start(self) -> None:
        """Connect the site."""
        self._begun = asyncio.get_running_loop().time()
        hub, here, work = self._hub, self._here, f"site.{self.faults.name}.>"
        carried = [
            self._carry(
                here.streams[Channel.TRAJECTORIES], hub.streams[Channel.TRAJECTORIES], UP, moves=True
            ),
            self._carry(here.streams[Channel.EVENTS], hub.streams[Channel.EVENTS], UP, moves=True),
            self._carry(here.streams[Channel.PROGRESS], hub.streams[Channel.PROGRESS], UP),
            self._carry(here.signals, hub.signals, UP),
            self._carry(hub.streams[Channel.VERSIONS], here.streams[Channel.VERSIONS], DOWN),
            self._carry(hub.streams[Channel.WORK], here.streams[Channel.WORK], DOWN, wanted=work, moves=True),
            self._copy_weights(),
        ]
        self.tasks += [
            asyncio.create_task(one, name=f"{self.faults.name} {n}") for n, one in enumerate(carried)
        ]

    # ------------------------------------------------------------------------------------------ the link

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._begun

    def _cut(self, direction: str) -> Cut | None:
        now = self._now
        return next(
            (c for c in self.faults.cuts if c.direction == direction and c.at <= now < c.at + c.seconds), None
        )

    async def _open(self, direction: str) -> None:
        """Wait while a direction is cut."""
        while (cut := self._cut(direction)) is not None:
            self._happened[f"held by a cut {direction}"] += 1
            await asyncio.sleep(max(0.001, cut.at + cut.seconds - self._now))

    async def _carry(
        self,
        source: StoredStream,
        target: StoredStream,
        direction: str,
        *,
        wanted: str = ">",
        moves: bool = False,
    ) -> None:
        """Store each message of a stream in another one, in order; what was replaced before it was sent is not sent."""
        on_the_way: asyncio.Queue[tuple[float, Message]] = asyncio.Queue()
        is_slow, free = direction == UP and target.name in SLOW, 0.0
        self.tasks.append(asyncio.create_task(self._arrive(on_the_way, source, target, direction, moves)))
        following, cuts = 1, len(source.cuts)
        while True:
            if len(source.cuts) > cuts:
                following, cuts = min(source.cuts[cuts:]) + 1, len(source.cuts)
            fresh = [m for m in source.since(following) if matches(wanted, m.suffix)]
            for message in fresh:
                following = message.sequence + 1
                await self._open(direction)
                if is_slow and (seconds := free - asyncio.get_running_loop().time()) > 0:
                    self._happened[f"behind a backlog: {target.name}"] += 1
                    await asyncio.sleep(seconds)
                    await self._open(direction)
                if source.get(message.sequence) is message:
                    free = asyncio.get_running_loop().time() + len(message.data) / self.faults.rate
                    on_the_way.put_nowait((free + self.faults.delay, message))
            if not fresh and len(source.cuts) == cuts:
                await source.changes.wait(wanted)

    async def _arrive(
        self,
        on_the_way: asyncio.Queue[tuple[float, Message]],
        source: StoredStream,
        target: StoredStream,
        direction: str,
        moves: bool,
    ) -> None:
        while True:
            arrival, message = await on_the_way.get()
            await asyncio.sleep(max(0.0, arrival - asyncio.get_running_loop().time()))
            if self._cut(direction) is not None:  # it is sent again, if it is stored then
                await self._open(direction)
                if source.get(message.sequence) is not message:
                    continue
            await self._store(target, message)
            if moves:
                source.remove([message.sequence])

    async def _store(self, target: StoredStream, message: Message) -> None:
        headers = {name: value for name, value in message.headers.items() if name != MESSAGE_ID}
        stored = False
        while not stored:
            try:
                target.add(message.suffix, message.data, headers, message.headers[MESSAGE_ID])
                stored = True
            except StoreFull:
                await asyncio.sleep(1.0)

    async def _copy_weights(self) -> None:
        while True:
            for key in list(self.weights.manifests):
                if key not in self.weights.arrived:
                    await self._open(DOWN)
                    seconds = self.faults.delay + self._chance.uniform(0.0, self.faults.weights)
                    await asyncio.sleep(seconds)
                    await self._open(DOWN)
                    self.weights.arrived.add(key)
            await asyncio.sleep(0.25)

    # ------------------------------------------------------------------------------------------ the coordinator

    def beat(self, value: bytes) -> None:
        """The coordinator sends a beat by way of this site."""
        if self._cut(DOWN) is None:
            self.tasks.append(asyncio.create_task(self._beat(value), name="a beat"))
            self.tasks = [task for task in self.tasks if not task.done()]

    async def _beat(self, value: bytes) -> None:
        await asyncio.sleep(self.faults.delay)
        if self._cut(DOWN) is None:
            self._here.signals.add(f"{SITE_SIGNALS}{self.faults.name}", value, {})

    def mark(self, value: str) -> None:
        """The coordinator sends a mark by way of this site."""
        self.marks += 1
        if self._cut(DOWN) is None:
            self.tasks.append(asyncio.create_task(self._mark(value), name="a mark"))

    async def _mark(self, value: str) -> None:
        await asyncio.sleep(self.faults.delay)
        if self._cut(DOWN) is None:
            await MemoryStore(self.server, subject=self._subject).put_site_mark(self.faults.name, value)

    def work_was_sent(self) -> None:
        """The coordinator has sent work to an engine here."""
        cuts = [cut for cut in map(self._cut, (UP, DOWN)) if cut is not None]
        self.latest_work = max([self.latest_work, *(self._now - cut.at for cut in cuts)])


def any_site(name: str, chance: random.Random) -> SiteFaults:
    """Draw a site: its link may be slow, and be cut one way or both ways, once or often, shortly or long."""
    cuts: list[Cut] = []
    for kind in chance.sample(["one way", "both ways", "flaps", "long"], chance.choice([0, 1, 1, 2])):
        at, direction = chance.uniform(0.0, 25.0), chance.choice([UP, DOWN])
        match kind:
            case "one way":
                cuts.append(Cut(direction, at, chance.uniform(5.0, 40.0)))
            case "both ways":
                cuts += _both(at, chance.uniform(5.0, 40.0))
            case "flaps":
                for _ in range(12):
                    cuts += _both(at, seconds := chance.uniform(0.3, 4.0))
                    at += seconds + chance.uniform(0.2, 4.0)
            case "long":
                seconds = chance.choice([90.0, 300.0, 800.0])
                cuts += chance.choice([_both(at, seconds), [Cut(direction, at, seconds)]])
    return SiteFaults(
        name,
        engines=chance.randint(1, 3),
        delay=chance.choice([0.0, 0.05, 0.05, 0.5, 3.0]),
        weights=chance.choice([0.0, 1.0, 5.0, 30.0]),
        cuts=tuple(cuts),
        rate=random.Random(f"rate {cuts}").choice([math.inf, math.inf, 3000.0, 300.0]),
    )


def _both(at: float, seconds: float) -> list[Cut]:
    return [Cut(UP, at, seconds), Cut(DOWN, at, seconds)]
