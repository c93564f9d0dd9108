"""`HubLink` is the hub's end of the talk with one site: what it is to run, and what it reports."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from nats.aio.client import Client

from rljob_operator.decisions.site_buckets import (
    BucketHello,
    CopyProgress,
    SiteBucketNames,
    bucket_definition,
    copied_source,
    hello_from_hub,
)
from rljob_operator.decisions.site_claims import SiteClaim, releases_fit, unfit_releases
from rljob_operator.decisions.site_documents import (
    AGAIN,
    BEAT,
    PoolDocument,
    SiteSettings,
    changes_at_hub,
    listed_namespaces,
    reported_namespace,
)
from rljob_operator.decisions.site_reports import SILENT, Agreement, SiteBeat, SiteContact
from rljob_operator.reconcile.site_bucket import SiteBucket, create_consumer, create_mirror
from rljob_operator.reconcile.stream_requests import StreamRefused, create_stream

log = logging.getLogger(__name__)


class HubLink:
    """The talk with one site.

    Args:
        names: of its buckets.
        contact: what is known of it so far.
        release: of this operator.

    Attributes:
        contact: when the site was last heard.
        pools: the bucket that the hub writes.
        reports: the hub's copy of the bucket that the site writes.
        read: whether the reports have been read: until then, what RolloutPools say is truer.
        away: for how long the site has been silent, if that is longer than its grace; else None.
        lost: why the site counts as lost; empty if it does not.
        unwritten: by key of `pools`, why the server does not take it.
        obstacle: why the site's reports cannot be copied; empty if they can.
    """

    def __init__(self, names: SiteBucketNames, contact: SiteContact, *, release: str) -> None:
        self.names = names
        self.contact = contact
        self.pools = SiteBucket(names.pools)
        self.reports = SiteBucket(names.reports)
        self.read = False
        self.away: timedelta | None = None
        self.unwritten: dict[str, str] = {}
        self.lost = ""
        self.obstacle = ""
        self._release = release
        self._joined: tuple[int, int | None] = 0, None
        self._claim = SiteClaim()
        self._hello: BucketHello | None = None
        """The newest that was said and not yet answered."""
        self._site_release = ""
        self._last_then = 0
        """The newest sequence of `reports` when that was said."""
        self._down, self._up = Agreement(), Agreement()
        self._progress = CopyProgress()
        self._unknown: dict[str, datetime] = {}
        """Namespaces of pools that the site reports and nothing here knows of, and since when."""

    def hear(self, data: bytes, now: datetime) -> None:
        """Take a hello of the site's."""
        hello = BucketHello.read(data) or BucketHello()
        self._claim = self._claim.after(hello.created, now)
        if hello.created in {"", self._claim.created}:
            self._hello, self._site_release, self._last_then = hello, hello.release, self.reports.last

    def trouble(self, now: datetime) -> tuple[str, str] | None:
        """Reason and message why nothing is written to the site; None if there is nothing wrong with it."""
        if self._claim.is_contested(now):
            return "NameClaimedTwice", (
                f"two NATS servers say that they are Site {self.names.site}'s: give one of the sites another name "
                "(RLJOB_SITE, its JetStream domain, and a Site of its own); if one of them is the other without what "
                "it had stored, wait a minute"
            )
        if not releases_fit(self._release, self._site_release):
            return "UnsupportedRelease", unfit_releases(hub=self._release, site=self._site_release)
        return None

    def is_silent(self, now: datetime) -> bool:
        """Whether the site has not said hello for a while."""
        heard = self._claim.heard
        return heard is None or now - heard > SILENT

    async def talk(
        self,
        client: Client,
        connections: int,
        wanted: Iterable[PoolDocument],
        *,
        namespaces: Sequence[str],
        settings: SiteSettings | None,
        now: datetime,
        bits_per_second: int | None = None,
    ) -> None:
        """Write what the site is to have, read what it reports, and answer its hello.

        Args:
            client: at the hub's server.
            connections: number of connections to it so far.
            wanted: the pools that the site is to have.
            namespaces: that the operator watches; empty for all.
            settings: of the site; None of a site without a Site.
            now: the time, with its time zone.
            bits_per_second: of the link to the site; None if that is not known.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: the server does not do what it is asked.
        """
        exists = await self.pools.read(client)
        if self._joined != (connections, bits_per_second) or not exists:
            await create_stream(client, bucket_definition(self.names.pools))
            await create_consumer(client, self.names.pools, self.names.consumer_at_hub(bits_per_second))
            await self.pools.read(client)
            self._joined = connections, bits_per_second
        if self.trouble(now) is None:
            orphaned = self._orphaned(namespaces, settings, now)
            changes = changes_at_hub(
                wanted, self.pools.entries, namespaces=namespaces, also=orphaned, settings=settings
            )
            self.unwritten = await self.pools.write(client, changes)
            if changes.puts or changes.deletes:
                await self.pools.read(client)
        await self._read(client, now)
        await self._mend(client, now)
        await self._answer(client, now)

    def _orphaned(self, namespaces: Sequence[str], settings: SiteSettings | None, now: datetime) -> list[str]:
        """Namespaces in which the site has had pools for long that nothing at the hub knows of.

        As where the hub's NATS server has lost its disk, and the jobs were deleted meanwhile. A hub that is moved, or
        restored from a backup, has that long to get its jobs again.
        """
        reported = set(filter(None, map(reported_namespace, self.reports.entries)))
        unknown = reported - listed_namespaces(self.pools.entries)
        self._unknown = {
            namespace: self._unknown.get(namespace, now)
            for namespace in unknown
            if not namespaces or namespace in namespaces
        }
        if settings is None or settings.lost_seconds is None:
            return []
        limit = timedelta(seconds=settings.lost_seconds)
        return [namespace for namespace, since in self._unknown.items() if now - since > limit]

    async def _read(self, client: Client, now: datetime) -> None:
        if await self.reports.read(client) and not self._claim.created:
            copied = copied_source(self.reports.config).partition(" ")[0]
            self._claim = SiteClaim(copied, now if copied else None)
        text, before = self.reports.entries.get(BEAT), self.contact
        self.contact = before.after(SiteBeat.read(text), now)
        beat = self.contact.beat
        if beat is not None and self.contact.heard not in {None, before.heard}:
            if beat.pools_last >= self.pools.last or not beat.pools_last:
                self._down = self._down.after(beat.pools == self.pools.content, now)
            self._up = self._up.after(beat.reports == self.reports.content, now)
        self.read = self.read or bool(self._up.agrees) or self.contact.silent(now) > SILENT

    async def _mend(self, client: Client, now: datetime) -> None:
        """Let both mirrors be made again if the sides do not have the same, and will not by themselves."""
        if self.trouble(now) is not None:
            return
        if self._hello is not None:
            self._progress = self._progress.after(self.reports.last, self._hello.last, now)
        if not (self._progress.is_stuck(now) or self._down.broken(now) or self._up.broken(now)):
            return
        log.warning("Site %s and the hub have not the same: both copy everything again", self.names.site)
        await self.pools.put(client, AGAIN, now.isoformat().encode())
        self.pools.forget()
        await self.pools.read(client)
        self._down, self._up, self._progress = Agreement(), Agreement(), CopyProgress()

    async def _answer(self, client: Client, now: datetime) -> None:
        """Make the mirror of the site's bucket if need be, and say hello.

        Not before the site has said hello: a mirror that finds no consumer there tries again ever more seldom.
        """
        hello = self._hello
        if hello is None:
            return
        again = self.pools.entries.get(AGAIN, b"").decode(errors="replace")
        answer = self.pools.hello(again=again, release=self._release)
        answer = answer.model_copy(update={"site": self._claim.created})
        await client.publish(hello_from_hub(self.names.site), answer.model_dump_json().encode())
        self._hello = None
        if self._claim.is_contested(now):
            return
        mirror = self.names.mirror_at_hub(hello.source)
        try:
            await create_mirror(client, self.reports, mirror, hello, last=self._last_then)
            self.obstacle = ""
        except (StreamRefused, TimeoutError) as error:
            self.obstacle = (
                f"the hub cannot read what the site reports: {str(error) or 'no answer'} (JetStream domain "
                f"{self.names.domain}: is it that of the site's NATS server?)"
            )
            log.warning("Site %s: %s", self.names.site, self.obstacle)
