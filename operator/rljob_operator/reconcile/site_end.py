"""`SiteEnd` is a site's end of the talk with the hub: it reads what the hub wants, and writes reports and beats."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from nats.aio.client import Client
from pydantic import ValidationError

from rljob_operator.decisions.joined_streams import (
    JobUid,
    StreamsReport,
    reported_jobs,
    stream_namespaces,
    stream_reports,
)
from rljob_operator.decisions.site_buckets import (
    BucketHello,
    CopyProgress,
    SiteBucketNames,
    bucket_definition,
    hello_from_hub,
    hello_from_site,
    stream_of,
)
from rljob_operator.decisions.site_claims import releases_fit, unfit_releases
from rljob_operator.decisions.site_documents import (
    BEAT,
    BucketChanges,
    PoolAddress,
    SiteSettings,
    WantedPools,
    report_key,
    reported_namespace,
    wanted_pools,
)
from rljob_operator.decisions.site_reports import PoolReport, SiteBeat
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_bucket import SiteBucket, create_consumer, create_mirror
from rljob_operator.reconcile.stream_requests import ask, create_stream, delete_streams
from rljob_operator.release import RELEASE

_WORK_QUEUE = "workqueue"


log = logging.getLogger(__name__)

_BEAT_SECONDS = 5.0
_LISTEN_SECONDS = 30.0
"""For which a site listens in vain before its hub counts as lost, whatever clocks say: the hub answers each hello."""
_LOST = "has not been heard for longer than its Site's lostSeconds: the pools that it runs here end"


class SiteEnd:
    """The two buckets of a site, at the site.

    Args:
        site: its name.
        connection: to the site's nats-server, not yet connected.
        release: of this operator.
        clock: returns the current time, with its time zone.
        monotonic: returns seconds that nobody can set.
    """

    def __init__(
        self,
        site: str,
        connection: NatsConnection,
        *,
        release: str = RELEASE,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site = site
        self._names = SiteBucketNames(site, site)  # the hub alone needs the domain
        self._connection = connection
        self._release = release
        self._clock = clock
        self._pools = SiteBucket(self._names.pools)
        self._reports = SiteBucket(self._names.reports)
        self._joined = 0
        self._hello: BucketHello | None = None
        """The newest of the hub that was not yet followed."""
        self._last_then = 0
        """The newest sequence of the copy when that was said."""
        self._again = ""
        self._progress = CopyProgress()
        self._next_beat = 0.0
        self.capacity: Mapping[str, int] = {}
        """Of the site's nodes, for the next beat."""
        self._hub_heard: datetime | None = None
        self._monotonic = monotonic
        self._listening = 0, 0.0
        """Over which connection, and since when in vain."""
        self._found: WantedPools | None = None
        self._was_lost = False
        self.refused = ""
        connection.subscribe(hello_from_hub(site), self._on_hello)

    def wanted(self) -> WantedPools:
        """What the site is to have, by what was read last: nothing once the hub is lost."""
        found, lost = self._found, self._hub_is_lost()
        if found is None or found.content != self._pools.content:
            self._found = found = wanted_pools(self._pools.entries)
        if lost != self._was_lost:
            self._was_lost = lost
            log.warning("the hub %s", _LOST if lost else "is heard again: its pools come back")
        return replace(found, pools={}, unread=frozenset()) if lost else found

    def _hub_is_lost(self) -> bool:
        seconds = SiteSettings.of(self._pools.entries).lost_seconds
        if seconds is None or self._hub_heard is None:
            return False
        if self._monotonic() - self._listening[1] < _LISTEN_SECONDS:
            return False
        return self._clock() - self._hub_heard > timedelta(seconds=seconds)

    @property
    def pools(self) -> Mapping[str, bytes]:
        """What the hub has written, as it was read last."""
        return self._pools.entries

    @property
    def reported(self) -> set[JobUid]:
        """The jobs of whose streams the site has said something, as it was read last."""
        return reported_jobs(self._reports.entries)

    async def read(self, client: Client) -> bool:
        """Read what the hub wants; returns whether there is a copy of it that this site may follow.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: the server does not do what it is asked.
        """
        if self._listening[0] != (number := self._connection.connections):
            self._listening = number, self._monotonic()
        exists = await self._reports.read(client)
        if self._joined != self._connection.connections or not exists:
            await create_stream(client, bucket_definition(self._names.reports))
            await create_consumer(client, self._names.reports, self._names.consumer_at_site())
            await self._reports.read(client)
            self._joined = self._connection.connections
        if self._hub_heard is None:  # an earlier process may have heard it
            self._hub_heard = _heard_before(self._reports.entries, self._clock())
        is_there = await self._pools.read(client)
        # A mirror that finds no consumer at the hub tries again ever more seldom. So it waits for the hub's word.
        if (hello := self._hello) is not None:
            self._hello = None
            self._refuse(hello)
            if not self.refused and await self._follow(client, hello):
                log.info("Site %s copies what the hub wants", self._site)
                is_there = False
        return is_there and (not self.refused or self._hub_is_lost())

    def _refuse(self, hello: BucketHello) -> None:
        before = self.refused
        if hello.site and self._reports.created and hello.site != self._reports.created:
            self.refused = (
                f"another NATS server is Site {self._site}'s for the hub: give this one another name (RLJOB_SITE, its "
                "JetStream domain, and a Site of its own); one that has lost what it stored is admitted within a minute"
            )
        elif not releases_fit(self._release, hello.release):
            self.refused = unfit_releases(hub=hello.release, site=self._release)
        else:
            self.refused = ""
        if self.refused and self.refused != before:
            log.error("pools stay as they are: %s", self.refused)

    async def _follow(self, client: Client, hello: BucketHello) -> bool:
        """Make the copy if need be; returns whether that was so."""
        if hello.again != self._again:
            self._reports.forget()
            await self._reports.read(client)
            self._again = hello.again
        now = self._clock()
        self._progress = self._progress.after(self._pools.last, hello.last, now)
        if self._progress.is_stuck(now):
            log.warning("the copy of what the hub wants stands still: it is made again")
            self._progress = CopyProgress()
            await delete_streams(client, [stream_of(self._names.pools)])
            self._pools.forget()
        mirror = self._names.mirror_at_site(hello.source)
        return await create_mirror(client, self._pools, mirror, hello, last=self._last_then)

    async def tell(
        self,
        client: Client,
        reports: Mapping[PoolAddress, PoolReport],
        wanted: WantedPools | None,
        streams: Mapping[tuple[str, str], StreamsReport] = MappingProxyType({}),
    ) -> None:
        """Write the reports that have changed, and every few seconds a beat.

        Args:
            client: at the site's server.
            reports: of the pools that have been looked at since this process began.
            wanted: the newest lists of pools that were read. Reports of what they name stay until there are others.
            streams: what there is of the streams of each job.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: the server does not do what it is asked.
        """
        await self._reports.read(client)
        held = self._reports.entries
        told = {report_key(address): r.model_dump_json().encode() for address, r in reports.items()}
        told |= stream_reports(streams)
        gone: list[str] = []
        if wanted is not None:
            kept = {*told, *map(report_key, wanted.pools), *map(report_key, wanted.unread)}
            gone = [
                k
                for k in held
                if k not in kept and (reported_namespace(k) in wanted.namespaces or stream_namespaces([k]))
            ]
        puts = tuple((key, value) for key, value in told.items() if held.get(key) != value)
        for key, why in (await self._reports.write(client, BucketChanges(puts, tuple(gone)))).items():
            log.warning("the hub is not told of %s: %s", key, why)
        if time.monotonic() < self._next_beat:
            return
        await self._reports.read(client)  # what was just written
        hello = self._reports.hello(again=self._again, release=self._release)
        await client.publish(hello_from_site(self._site), hello.model_dump_json().encode())
        outbox_bytes, mirror_lag = await _backlog(client)
        beat = SiteBeat(
            number=time.time_ns(),
            pools="" if wanted is None else wanted.content,
            pools_last=self._pools.last,
            hub_heard=0.0 if self._hub_heard is None else self._hub_heard.timestamp(),
            reports=self._reports.content,
            outbox_bytes=outbox_bytes,
            mirror_lag=mirror_lag,
            capacity=dict(self.capacity),
        )
        await self._reports.put(client, BEAT, beat.model_dump_json().encode())
        self._next_beat = time.monotonic() + _BEAT_SECONDS

    def _on_hello(self, _subject: str, data: bytes) -> None:
        self._hello, self._last_then = BucketHello.read(data) or BucketHello(), self._pools.last
        self._hub_heard = self._clock()
        self._listening = self._connection.connections, self._monotonic()


def _heard_before(reports: Mapping[str, bytes], now: datetime) -> datetime:
    """When an earlier process of this site's operator has heard the hub last; now if that is not known."""
    try:
        heard = datetime.fromtimestamp(SiteBeat.model_validate_json(reports.get(BEAT, b"")).hub_heard, UTC)
    except (ValidationError, ValueError, OverflowError, OSError):
        return now
    return min(heard, now) if heard.timestamp() else now


async def _backlog(client: Client) -> tuple[int, int]:
    """What waits at the site's server.

    That is bytes in streams from which the hub takes (work queues, of which what was taken is deleted), and messages of
    the hub that mirrors and sourcing streams of the site lack.
    """
    outbox, lag, offset = 0, 0, 0
    while True:
        page = await ask(client, "$JS.API.STREAM.LIST", json.dumps({"offset": offset}).encode())
        streams = page.get("streams") or []
        for info in streams:
            upstream = [info["mirror"]] if info.get("mirror") else info.get("sources") or []
            lag += sum(int(source.get("lag", 0)) for source in upstream)
            if info["config"]["retention"] == _WORK_QUEUE and not upstream:
                outbox += int(info["state"]["bytes"])
        offset += len(streams)
        if not streams or offset >= int(page.get("total", 0)):
            return outbox, lag
