"""The message store on one server and on three replicas, at each `sync_interval`, beside each other in one run.

One client, on the same machine as the servers: appends to the ledger, each after the one before; publishes payloads,
many at once; and takes them from a queue, a batch at a time, acknowledging each message. Rounds on one server and on
three alternate. Three servers on one machine share its cores and its disk, which three machines do not.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parent.parent / "tests" / "contract"
sys.path += [str(CONTRACT)] if str(CONTRACT) not in sys.path else []

from e2e.harness.nats_server import EmbeddedServer  # noqa: E402
from nats_cluster import SIZE, NatsCluster  # noqa: E402

from rljob_core.ports import MESSAGE_ID, Channel  # noqa: E402
from rljob_runtime.messaging.nats.store import NatsStore  # noqa: E402

_PAYLOAD = 8_000
_BATCH = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        sync_intervals: of the servers, a pair of cases each.
        rounds: of each case.
        appends, payloads: messages of a round.
    """

    sync_intervals: tuple[str, ...] = ("2m", "1s", "always")
    rounds: int = 5
    appends: int = 300
    payloads: int = 2_000


FULL = Sizes()
SIZES = {"full": FULL, "quick": Sizes(rounds=3), "smoke": Sizes(("1s",), rounds=1, appends=5, payloads=100)}
SMOKE = SIZES["smoke"]

#: Milliseconds of an append, the median and the 99th percentile; messages published and taken per second.
Round = tuple[float, float, float, float]


class Client:
    """One client of a job's streams.

    Args:
        url: of a server.
        replicas: of each stream.
    """

    def __init__(self, url: str, replicas: int) -> None:
        self._store = NatsStore(url, subject="rljob.b", stream_prefix="RLJOB_b", replicas=replicas)
        self._end, self._newest = 0, ""

    async def open(self) -> None:
        """Create the streams and the queue."""
        await self._store.open()
        self._queue = await self._store.queue(Channel.TRAJECTORIES, "payload", name="bench")

    async def close(self) -> None:
        """Disconnect."""
        await self._store.close()

    async def round(self, sizes: Sizes) -> Round:
        """One round of all three."""
        appends = sorted([await self._append() for _ in range(sizes.appends)])
        begun = time.perf_counter()
        data = bytes(_PAYLOAD)
        puts = (self._store.publish(Channel.TRAJECTORIES, "payload", data) for _ in range(sizes.payloads))
        await asyncio.gather(*puts)
        published = time.perf_counter()
        left = sizes.payloads
        while left:
            taken = await self._queue.fetch(messages=_BATCH, max_bytes=1 << 20, timeout=30.0)
            for delivery in taken:
                await delivery.ack()
            left -= len(taken)
        ended = time.perf_counter()
        return (
            1e3 * statistics.median(appends),
            1e3 * appends[len(appends) * 99 // 100],
            sizes.payloads / (published - begun),
            sizes.payloads / (ended - published),
        )

    async def _append(self) -> float:
        begun = time.perf_counter()
        identity = f"{self._end + 1}"
        self._end = await self._store.publish(
            Channel.LEDGER,
            "records",
            bytes(500),
            headers={MESSAGE_ID: identity},
            message_id=identity,
            expected_sequence=self._end,
            expected_id=self._newest or None,
        )
        self._newest = identity
        return time.perf_counter() - begun


async def measure(sync_interval: str, sizes: Sizes) -> dict[int, list[Round]]:
    """The rounds on one server and on three, by the number of replicas."""
    found: dict[int, list[Round]] = {1: [], SIZE: []}
    with tempfile.TemporaryDirectory() as folder:
        alone, together = Path(folder) / "one", Path(folder) / "three"
        together.mkdir()
        async with (
            EmbeddedServer(alone, sync_interval=sync_interval) as server,
            NatsCluster(together, sync_interval=sync_interval, proxied=False) as cluster,
        ):
            clients = {1: Client(server.url, 1), SIZE: Client(cluster.urls[0], SIZE)}
            for client in clients.values():
                await client.open()
                await client.round(SMOKE)
            for _ in range(sizes.rounds):
                for replicas, client in clients.items():
                    found[replicas].append(await client.round(sizes))
            for client in clients.values():
                await client.close()
    return found


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Run all and print them as a table.

    Returns:
        `cases`: a row for each `sync_interval` and number of replicas.
    """
    cases = []
    print(f"{'sync':>7}{'replicas':>9}{'append ms':>11}{'99 %':>8}{'publishes/s':>13}{'taken/s':>9}")
    for sync_interval in sizes.sync_intervals:
        for replicas, rounds in asyncio.run(measure(sync_interval, sizes)).items():
            append, slow, published, taken = (
                statistics.median(column) for column in zip(*rounds, strict=True)
            )
            cases.append(
                {
                    "sync_interval": sync_interval,
                    "replicas": replicas,
                    "append_ms": round(append, 2),
                    "append_99_ms": round(slow, 2),
                    "publishes_per_second": round(published),
                    "taken_per_second": round(taken),
                }
            )
            print(f"{sync_interval:>7}{replicas:9}{append:11.2f}{slow:8.2f}{published:13,.0f}{taken:9,.0f}")
    return {"cases": cases}
