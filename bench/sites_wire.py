"""What a link between two sites carries: answers and weights, in bytes on the wire per byte stored, and what s2 costs.

| measured | asked |
|---|---|
| answers: tokens of a language (by Zipf's law), log-probabilities of a float's full precision | ≤ 0.80 |
| random bytes, which nothing makes shorter | ≤ 1.05 |
| an anchor of random bits, read by eight engines of the site | ≤ 1.05 of the anchor |
| its deltas, of which a new engine needs all | |
| a site that joins late, and one that was away: of the versions in between | ≤ 1.05 of what is kept |

The same answers cross the link without compression, so that the servers' CPU seconds per gigabyte can be compared.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.nats_sites import HubAndSite

from bench.results import print_beside
from bench.store import make_trajectories
from bench.weights import publish, random_bits
from rljob_core.messages import VERSION_ANNOUNCED, VersionAnnounced
from rljob_core.ports import Channel, WeightManifest
from rljob_core.site_streams import SiteStreams
from rljob_core.stream_names import StreamNames
from rljob_core.trajectory import Trajectory
from rljob_runtime.messaging.nats.site_streams import join_site
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.weights.create import open_store
from rljob_runtime.weights.store import StoredWeights

SITE = "west"
NAMES = StreamNames.of_job(namespace="bench", job="wire", uid="1")
VOCABULARY, RESPONSE = 150_000, 2048
PIECE = 64 << 10
AWAY_SECONDS = 12.0
"""After which both servers have given the connection up."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        answers: number of answers that cross.
        random_bytes: that cross beside them.
        elements: of the weights, four bytes each.
        engines: that read them at the site.
        versions: that are written while the site is away.
        bits_per_second, delay: of the link.
    """

    answers: int = 2000
    random_bytes: int = 64 << 20
    elements: int = 7_500_000
    engines: int = 8
    versions: int = 6
    bits_per_second: float = 1e8
    delay: float = 0.033


FULL = Sizes()
SMOKE = Sizes(answers=64, random_bytes=1 << 20, elements=100_000, engines=2, versions=2, delay=0.005)


def make_answers(count: int) -> list[Trajectory]:
    """Answers as a language model gives them: a few tokens are most of the text, and no two log-probabilities equal."""
    random = np.random.default_rng(5)
    answers = make_trajectories(count, RESPONSE, first=1)

    def spoken(answer: Trajectory) -> Trajectory:
        prompt, response = answer.segments
        tokens = np.minimum(random.zipf(1.2, RESPONSE), VOCABULARY - 1).astype(np.int32)
        logprobs = -random.exponential(0.6, RESPONSE).astype(np.float32)
        return replace(answer, segments=(prompt, replace(response, tokens=tokens, logprobs=logprobs)))

    return [spoken(answer) for answer in answers]


class _Wire:
    """A job at both places, and what the link has carried."""

    def __init__(self, servers: HubAndSite, hub: NatsStore, site: NatsStore, sizes: Sizes) -> None:
        self._servers, self._hub, self._site, self._sizes = servers, hub, site, sizes

    async def join(self) -> None:
        streams = SiteStreams(NAMES, SITE, 4 << 30, bits_per_second=self._sizes.bits_per_second, weights=True)
        await join_site(self._servers.hub.url, self._servers.site.url, streams)

    async def answers(self) -> dict[str, float]:
        """Bytes up the link per byte of the messages that the engines store; CPU seconds of both servers per GB."""
        stored = TrajectoryStore(self._site)
        made = await asyncio.to_thread(make_answers, self._sizes.answers)
        before, cpu = self._servers.link.carried_up, self._cpu()
        for first in range(0, len(made), 16):
            await stored.put(made[first : first + 16])
        size = await self._arrived()
        return {
            "carried": (self._servers.link.carried_up - before) / size,
            "cpu_seconds_per_gb": (self._cpu() - cpu) / (size / 1e9),
        }

    async def random(self) -> float:
        """Bytes up the link per random byte."""
        before, source = self._servers.link.carried_up, np.random.default_rng(3)
        for _ in range(self._sizes.random_bytes // PIECE):
            await self._site.publish(Channel.TRAJECTORIES, "random", source.bytes(PIECE))
        size = await self._arrived()
        return (self._servers.link.carried_up - before) / size

    async def _arrived(self) -> int:
        """Wait until the site's outbox is empty; the bytes that the hub's stream holds, which is then emptied."""
        await _until(lambda: self._is_empty(self._site))
        size, sequences = 0, []
        count = sum((await self._hub.suffixes(Channel.TRAJECTORIES, ">")).values())
        async for batch in self._hub.read(Channel.TRAJECTORIES):
            for message in batch:
                size += len(message.data) + sum(len(k) + len(v) + 4 for k, v in message.headers.items())
                sequences.append(message.sequence)
            if len(sequences) >= count:
                break
        await self._hub.delete(Channel.TRAJECTORIES, sequences)
        return size

    async def _is_empty(self, store: NatsStore) -> bool:
        return not await store.suffixes(Channel.TRAJECTORIES, ">")

    def _cpu(self) -> float:
        pids = [self._servers.hub.pid, self._servers.site.pid]
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)

    async def weights(self) -> dict[str, float]:
        """Bytes down the link per byte of what the trainer has stored, or of what is left of it."""
        trainer = weights_at(self._servers.hub)
        with closing(trainer):
            return await self._weights(trainer)

    async def _weights(self, trainer: StoredWeights) -> dict[str, float]:
        link, sizes = self._servers.link, self._sizes
        values = random_bits((sizes.elements,), 1).numpy()
        written: list[WeightManifest] = []

        async def write(part: float) -> None:
            """The next version, in which this part of the elements has changed."""
            nonlocal values
            values = values.copy()
            where = np.random.default_rng(len(written)).random(sizes.elements) < part
            values.view(np.int32)[where] ^= 1 << 22
            parent = written[-1].digest if written else ""
            version = len(written) + 1
            tensors = {"weights": torch_of(values)}
            written.append(await asyncio.to_thread(publish, trainer, version, tensors, parent))
            newest = VersionAnnounced(1, version, written[-1].key, written[-1].digest)
            await self._hub.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(newest))

        async def read(engines: int) -> None:
            with ThreadPoolExecutor(engines) as pool:
                loop = asyncio.get_running_loop()
                work = partial(fetch_whole, self._servers.site, written[-1].key)
                await asyncio.gather(*(loop.run_in_executor(pool, work) for _ in range(engines)))

        async def carried(change: Callable[[], Any]) -> float:
            before = link.carried
            await change()
            await self._same()
            return float(link.carried - before)

        anchor = 4.0 * sizes.elements
        found = {"anchor": await carried(partial(write, 1.0)) / anchor}
        before = link.carried
        await read(sizes.engines)
        found["engines"] = found["anchor"] + (link.carried - before) / anchor
        found["delta"] = await carried(partial(write, 0.01)) / anchor
        found["away"] = await self._away(write, trainer, written, anchor)
        await read(1)
        return found

    async def _away(
        self,
        write: Callable[[float], Any],
        trainer: StoredWeights,
        written: list[WeightManifest],
        anchor: float,
    ) -> float:
        """Anchors' worth of bytes after a cut in which every version was whole, and only the newest is left."""
        link = self._servers.link
        link.cut()
        await asyncio.sleep(AWAY_SECONDS)
        for _ in range(self._sizes.versions):
            await write(1.0)
        for manifest in written[:-1]:
            await asyncio.to_thread(trainer.delete, manifest.key)
        before = link.carried
        link.mend()
        await self._same()
        return (link.carried - before) / anchor

    async def _same(self) -> None:
        """Wait until the site's copy is the hub's."""

        async def is_same() -> bool:
            here, there = [await store.suffixes(Channel.WEIGHTS, ">") for store in (self._hub, self._site)]
            return here == there

        await _until(is_same)


def torch_of(values: Any) -> Any:
    """A torch tensor over a NumPy array."""
    import torch

    return torch.from_numpy(values)


def weights_at(server: EmbeddedServer) -> StoredWeights:
    """The job's weights on one of the servers."""
    connect = partial(
        NatsStore, server.url, subject=NAMES.subject, stream_prefix=NAMES.prefix, create=False, attempt=30.0
    )
    return open_store("Nats", connect=connect, anchor_every=100)


def fetch_whole(server: EmbeddedServer, key: str) -> None:
    """Read a version as a new engine does."""
    with closing(weights_at(server)) as store:
        for _ in store.read(store.manifest(key)):
            pass


async def _until(so: Callable[[], Any]) -> None:
    while not await so():  # noqa: ASYNC110  servers tell nobody
        await asyncio.sleep(0.1)


@asynccontextmanager
async def _wire(folder: Path, sizes: Sizes, compression: str | None = None) -> AsyncIterator[_Wire]:
    rates = {"bits_per_second": sizes.bits_per_second, "delay": sizes.delay}
    async with HubAndSite(folder, site=SITE, compression=compression, **rates) as servers:
        stores = [
            NatsStore(
                server.url, subject=NAMES.subject, stream_prefix=NAMES.prefix, create=server is servers.hub
            )
            for server in (servers.hub, servers.site)
        ]
        wire = _Wire(servers, *stores, sizes)
        await stores[0].open()
        await wire.join()
        await stores[1].open()
        try:
            yield wire
        finally:
            for store in stores:
                await store.close()


async def measure(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """All figures: bytes on the wire per byte, and CPU seconds of both servers per gigabyte."""
    async with _wire(folder / "s2", sizes) as wire:
        found: dict[str, Any] = {"answers": await wire.answers(), "random": await wire.random()}
        found["weights"] = await wire.weights()
    async with _wire(folder / "plain", sizes, compression="off") as wire:
        found["plain_answers"] = await wire.answers()
    return found


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Measure, and print each figure beside what is asked."""
    with tempfile.TemporaryDirectory(prefix="rljob-wire-") as folder:
        found = asyncio.run(measure(Path(folder), sizes))
    weights, answers, plain = found["weights"], found["answers"], found["plain_answers"]
    rows = (
        ("answers, bytes on the wire per byte", answers["carried"], 0.80),
        ("random bytes", found["random"], 1.05),
        (f"an anchor, read by {sizes.engines} engines", weights["engines"], 1.05),
        ("a delta with 1 % changed, in anchors", weights["delta"], None),
        (f"after a cut over {sizes.versions} whole versions, in anchors", weights["away"], 1.05),
    )
    for name, value, asked in rows:
        print_beside(name, value, asked)
    print(
        f"s2: {answers['cpu_seconds_per_gb']:.1f} CPU seconds of both servers per GB of answers, "
        f"{plain['cpu_seconds_per_gb']:.1f} without ({plain['carried']:.2f} bytes on the wire per byte)"
    )
    return found
