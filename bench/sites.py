"""Streams between a site and the hub: two nats-servers over a link of 100 Mbit/s and 66 ms, which is cut, and kills.

Writers at the site store random payloads as trajectories, while the hub sends work and versions to the site and beats
by way of it. In between the link is cut, in both directions or in one, without either server being told, and servers
are killed with SIGKILL. What arrives is compared with what was stored.

| figure | of |
|---|---|
| put | a payload that a client stores: at the site's server, and straight at the hub over the same link |
| first | from the mending of the link, or the start of the killed server, to the first message that arrives |
| caught up | to the first message that is less than a second old |
| beat | how old the coordinator's heartbeat is when it is back, while the link is whole |
| known | from the cut to the heartbeat after which the coordinator takes the site for away |
| again | bytes over the link beyond those that arrive, from a kill of the hub's server until it has caught up |

Each figure is printed beside what is asked of it. `sites_wire` has the figures of answers and weights, `sites_job`
those of a job over two sites.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.harness.link import Link
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.nats_sites import HubAndSite

from bench import sites_job, sites_wire
from bench.results import print_beside
from rljob_cli.run_folder.streams import opened
from rljob_core.messages import SITE_SIGNALS, work_suffix
from rljob_core.planner.site_links import AWAY_HEARTBEATS
from rljob_core.ports import MESSAGE_ID, Channel
from rljob_core.site_streams import SiteStreams, unconfirmed
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.nats.site_streams import join_site
from rljob_runtime.messaging.nats.store import NatsStore

SITE = "west"
BITS_PER_SECOND, DELAY = 1e8, 0.033
PAYLOAD, WRITERS, PAUSE = 16 << 10, 4, 0.02
NAMES = StreamNames.of_job(namespace="bench", job="sites", uid="1")
WORK = work_suffix("pod.a", site=SITE)
_OUTBOX_BYTES = 4 << 30
_CURRENT = 1.0
_KEPT_SECONDS = 5.0
"""For which the hub keeps what has arrived, as a job keeps it until it is trained."""

Fault = tuple[str, float]
"""What is cut (`both`, `up`, `down`) and for how many seconds, or what is killed (`hub`, `site`)."""


def faults(cuts: int, kills: int, *, longest: float = 20.0) -> list[Fault]:
    """So many of each, in an order that is always the same."""
    chance = random.Random(7)
    lengths = [s for s in (0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0) if s <= longest]
    found: list[Fault] = [
        (chance.choice(("both", "both", "up", "down")), chance.choice(lengths)) for _ in range(cuts)
    ]
    found += [(("hub", "site")[number % 2], 0.0) for number in range(kills)]
    chance.shuffle(found)
    return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: through which faults, over the wire, and in a job (not at all if None)."""

    faults: Sequence[Fault]
    wire: sites_wire.Sizes
    job: sites_job.Sizes | None


SIZES = {
    "full": Sizes([*faults(50, 16), ("both", 300.0)], sites_wire.FULL, sites_job.FULL),
    "quick": Sizes(faults(8, 4), sites_wire.FULL, sites_job.QUICK),
    "smoke": Sizes(faults(2, 2, longest=1.0), sites_wire.SMOKE, None),
}


@dataclass
class _Observed:
    """What is sent and what arrives, by the clock of this process."""

    sent: list[int] = field(default_factory=lambda: [0] * WRITERS)
    stored: dict[str, float] = field(default_factory=dict)
    puts: list[float] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)
    newest: tuple[float, float] = (0.0, 0.0)
    """When the newest payload arrived, and how old it was."""
    work_sent: int = 0
    work: list[int] = field(default_factory=list)
    versions: int = 0
    version: int = -1
    beats: list[tuple[float, float]] = field(default_factory=list)
    """When a beat was back, and how old it was."""
    silent: int = 0
    away: list[float] = field(default_factory=list)
    """When so many beats were sent since one came back that the site is taken for away."""


class _Job:
    """Writers and readers of one job at both places, until `stop`."""

    def __init__(self, hub: NatsStore, site: NatsStore) -> None:
        self._hub, self._site = hub, site
        self._writing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self.seen = _Observed()
        self.changed = asyncio.Event()

    def start(self) -> None:
        def tasks(*work: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
            return [asyncio.create_task(one) for one in work]

        self._stopped = False
        self._writing = tasks(*map(self._write, range(WRITERS)), self._send_work(), self._announce())
        self._reading = tasks(self._read(), self._take_work(), self._follow(), self._beat(), self._watch())

    async def stop_writing(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._writing)

    async def stop(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def until(self, so: Any) -> None:
        """Wait until `so()`, which is asked whenever something arrives."""
        while not so():
            self.changed.clear()
            await self.changed.wait()

    async def _write(self, writer: int) -> None:
        chance = random.Random(writer)
        while not self._stopped:
            identity, before = f"{writer}-{self.seen.sent[writer]}", time.monotonic()
            self.seen.stored[identity] = before
            payload = chance.randbytes(PAYLOAD)
            await self._site.publish(Channel.TRAJECTORIES, f"w{writer}", payload, message_id=identity)
            self.seen.puts.append(time.monotonic() - before)
            self.seen.sent[writer] += 1
            await asyncio.sleep(PAUSE)

    async def _read(self) -> None:
        kept: list[tuple[float, list[int]]] = []
        async for batch in self._hub.read(Channel.TRAJECTORIES):
            now = time.monotonic()
            self.seen.arrived += [message.headers[MESSAGE_ID] for message in batch]
            self.seen.newest = now, now - self.seen.stored[self.seen.arrived[-1]]
            kept.append((now, [message.sequence for message in batch]))
            while kept[0][0] < now - _KEPT_SECONDS:
                await self._hub.delete(Channel.TRAJECTORIES, kept.pop(0)[1])
            self.changed.set()

    async def _send_work(self) -> None:
        while not self._stopped:
            await self._hub.publish(Channel.WORK, WORK, b"%d" % self.seen.work_sent)
            self.seen.work_sent += 1
            await asyncio.sleep(0.1)

    async def _take_work(self) -> None:
        queue = await self._site.queue(Channel.WORK, WORK, name="")
        while True:
            for delivery in await queue.fetch(messages=64, max_bytes=1 << 20, timeout=5.0):
                self.seen.work.append(int(delivery.message.data))
                await delivery.ack()
            self.changed.set()

    async def _announce(self) -> None:
        while not self._stopped:
            await self._hub.publish(Channel.VERSIONS, "policy", b"%d" % self.seen.versions)
            self.seen.versions += 1
            await asyncio.sleep(0.3)

    async def _follow(self) -> None:
        async for batch in self._site.read(Channel.VERSIONS):
            self.seen.version = int(batch[-1].data)
            self.changed.set()

    async def _beat(self) -> None:
        while True:
            await self._hub.put_site_beat(SITE, repr(time.monotonic()).encode())
            self.seen.silent += 1
            if self.seen.silent == AWAY_HEARTBEATS:
                self.seen.away.append(time.monotonic())
            await asyncio.sleep(1.0)

    async def _watch(self) -> None:
        async for key, value in self._hub.watch_signals():
            if key == SITE_SIGNALS + SITE and value is not None:
                now = time.monotonic()
                self.seen.beats.append((now, now - float(value)))
                self.seen.silent = 0
                self.changed.set()


async def _inflict(fault: Fault, servers: HubAndSite) -> None:
    what, seconds = fault
    if server := {"hub": servers.hub, "site": servers.site}.get(what):
        await server.kill()
        await server.start()
        return
    servers.link.cut(up=what != "down", down=what != "up")
    await asyncio.sleep(seconds)
    servers.link.mend()


async def _measure(some: Sequence[Fault], folder: Path) -> dict[str, Any]:
    async with (
        HubAndSite(folder, site=SITE, bits_per_second=BITS_PER_SECOND, delay=DELAY) as servers,
        _store(servers.hub, create=True) as hub,
        _store(servers.site) as site,
    ):
        streams = SiteStreams(NAMES, SITE, _OUTBOX_BYTES, bits_per_second=BITS_PER_SECOND)
        await join_site(servers.hub.url, servers.site.url, streams)
        straight = await _straight_put(servers.hub.url)
        job = _Job(hub, site)
        job.start()
        rows = [await _one(fault, servers, job, site) for fault in some]
        await job.stop_writing()
        emptied = await _seconds_until_empty(site)
        await job.until(lambda: len(job.seen.arrived) >= sum(job.seen.sent))
        await job.until(lambda: len(job.seen.work) >= job.seen.work_sent)
        await job.until(lambda: job.seen.version == job.seen.versions - 1)
        await asyncio.sleep(2.0)  # in which something may come twice
        await job.stop()
        carried = servers.link.carried_up / (PAYLOAD * sum(job.seen.sent))
    return {**_compared(job.seen), **_figures(rows, job.seen), "faults": rows} | {
        "straight_put_ms": 1e3 * straight,
        "outbox_empty_seconds": emptied,
        "carried_per_payload": carried,
    }


def _store(server: EmbeddedServer, *, create: bool = False) -> AbstractAsyncContextManager[NatsStore]:
    names = {"subject": NAMES.subject, "stream_prefix": NAMES.prefix}
    return opened(NatsStore(server.url, **names, create=create, patience=600.0))


async def _straight_put(url: str) -> float:
    """Median seconds in which a client over the link stores a payload at the hub."""
    with Link(url, bits_per_second=BITS_PER_SECOND, delay=DELAY) as link:
        straight = NatsStore(link.url, subject=f"{NAMES.subject}.straight", stream_prefix="RLJOB_straight")
        found = []
        async with opened(straight) as store:
            for number in range(20):
                before = time.monotonic()
                await store.publish(Channel.TRAJECTORIES, "w", bytes(PAYLOAD), message_id=str(number))
                found.append(time.monotonic() - before)
    return statistics.median(found)


async def _one(fault: Fault, servers: HubAndSite, job: _Job, site: NatsStore) -> dict[str, Any]:
    seen, link = job.seen, servers.link
    await job.until(lambda: seen.newest[1] and seen.newest[1] < _CURRENT)
    await asyncio.sleep(1.0)
    begun, carried, arrived = time.monotonic(), link.carried_up, len(seen.arrived)
    await _inflict(fault, servers)
    mended, sent = time.monotonic(), sum(seen.sent)
    backlog = PAYLOAD * (sent - len(seen.arrived))
    await job.until(lambda: seen.newest[0] > mended)
    first = time.monotonic() - mended
    await job.until(lambda: seen.newest[0] > mended and seen.newest[1] < _CURRENT)
    caught_up = time.monotonic() - mended
    live = PAYLOAD * (sum(seen.sent) - sent) / caught_up
    while_catching_up = [age for when, age in seen.beats if mended + first + 2.0 < when]
    row = {"what": fault[0], "seconds": fault[1], "first": first, "caught_up": caught_up}
    return {
        **row,
        "beat_ages": while_catching_up,
        "backlog_bytes": backlog,
        "live_bytes_per_second": live,
        "allowed": allowed_seconds(backlog, live),
        "again": max(link.carried_up - carried - PAYLOAD * (len(seen.arrived) - arrived), 0),
        "known": next((when - begun for when in seen.away if when > begun), None),
        "confirmed_seconds": await _seconds_until_few(site),
    }


def allowed_seconds(backlog: float, live: float) -> float:
    """Seconds within which a site is to have caught up, of bytes that wait and bytes per second that are added."""
    return 15.0 + 8 * backlog / (0.8 * BITS_PER_SECOND - 8 * live)


async def _seconds_until_few(site: NatsStore) -> float:
    """Until the outbox has no more than what may be on its way, and what is written in a second."""
    before, most = time.monotonic(), unconfirmed(BITS_PER_SECOND) + WRITERS / PAUSE
    while sum((await site.suffixes(Channel.TRAJECTORIES, ">")).values()) > most:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return time.monotonic() - before


async def _seconds_until_empty(site: NatsStore) -> float:
    before = time.monotonic()
    while await site.suffixes(Channel.TRAJECTORIES, ">"):  # noqa: ASYNC110  the server tells nobody
        await asyncio.sleep(0.05)
    return time.monotonic() - before


def _compared(seen: _Observed) -> dict[str, int]:
    """What is lost, there twice, or out of the order of its writer."""
    lost, disordered = 0, 0
    for writer in range(WRITERS):
        numbers = [int(name.partition("-")[2]) for name in seen.arrived if name.startswith(f"{writer}-")]
        lost += seen.sent[writer] - len(set(numbers))
        first_times = list(dict.fromkeys(numbers))
        disordered += first_times != sorted(first_times)
    return {
        "payloads": sum(seen.sent),
        "lost": lost + seen.work_sent - len(set(seen.work)),
        "twice": len(seen.arrived) - len(set(seen.arrived)) + len(seen.work) - len(set(seen.work)),
        "disordered": disordered + (seen.work != sorted(seen.work)),
        "work": seen.work_sent,
    }


def _figures(rows: Sequence[dict[str, Any]], seen: _Observed) -> dict[str, float]:
    ages = [age for row in rows for age in row["beat_ages"]]
    return {
        "put_ms": 1e3 * statistics.median(seen.puts),
        "beat_age_median": statistics.median(ages or [0.0]),
        "beat_age_most": max(ages, default=0.0),
    }


def main(sizes: Sizes) -> dict[str, Any]:
    """Measure, and print the tables."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rljob-sites-") as folder:
        found = asyncio.run(_measure(sizes.faults, Path(folder)))
    _print(found)
    for name, value, limit in asked(found):
        print_beside(name, value, limit)
    found["wire"] = sites_wire.main(sizes.wire)
    found["job"] = None if sizes.job is None else sites_job.main(sizes.job)
    print(f"load average {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} CPUs")
    return {**found, "load_before": load, "load_after": os.getloadavg()[0]}


def asked(found: dict[str, Any]) -> list[tuple[str, float | None, float | None]]:
    """Figures of streams: the name of each, what was found, and the most that is asked."""
    rows = found["faults"]
    cuts = [row for row in rows if row["seconds"]]
    away = [row for row in cuts if row["seconds"] > 60]
    hub = [row for row in rows if row["what"] == "hub"]
    known = [row["known"] for row in cuts if row["seconds"] > 15 and row["known"] is not None]

    def most(values: Iterable[float]) -> float | None:
        return max(values, default=None)

    longest = [(f"caught up after {row['seconds']:.0f} s", row["caught_up"], row["allowed"]) for row in away]
    return [
        *longest,
        ("outbox confirmed after catching up", most(row["confirmed_seconds"] for row in away), 5.0),
        ("oldest heartbeat while catching up", found["beat_age_most"], 0.5),
        ("first message after a cut", most(row["first"] for row in cuts), 15.0),
        ("first message after a kill of the hub's server", most(row["first"] for row in hub), 8.0),
        ("megabytes sent again after such a kill", most(row["again"] / 1e6 for row in hub), None),
        ("messages stored twice", found["twice"], 0),
        ("a cut known to the coordinator", most(known), 12.0),
        ("random bytes, on the wire per byte", found["carried_per_payload"], 1.05),
    ]


def _print(found: dict[str, Any]) -> None:
    print(f"{'fault':<14}{'times':>6}{'first s':>16}{'caught up s':>16}   (median, most)")
    for what, chosen in _groups(found["faults"]).items():
        firsts, caught = ([row[name] for row in chosen] for name in ("first", "caught_up"))
        print(
            f"{what:<14}{len(chosen):>6}{statistics.median(firsts):>8.2f}{max(firsts):>8.2f}"
            f"{statistics.median(caught):>8.2f}{max(caught):>8.2f}"
        )
    print(
        f"put {found['put_ms']:.2f} ms at the site, {found['straight_put_ms']:.0f} ms straight over the link; "
        f"{found['payloads']} payloads and {found['work']} messages of work: {found['lost']} lost, {found['twice']} "
        f"twice, {found['disordered']} of the order changed; outbox empty after {found['outbox_empty_seconds']:.1f} s; "
        f"beats {found['beat_age_median']:.2f} s old, {found['beat_age_most']:.2f} at most, while it catches up; "
        f"{found['carried_per_payload']:.2f} bytes carried per byte"
    )


def _groups(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        long = "short" if row["seconds"] < 9 else "long"
        what = f"kill {row['what']}" if row["what"] in {"hub", "site"} else f"{row['what']} {long}"
        found.setdefault(what, []).append(row)
    return dict(sorted(found.items()))
