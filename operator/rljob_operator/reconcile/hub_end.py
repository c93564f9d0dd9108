"""`HubEnd` is the hub's end of the talk with all sites: it writes what each is to run, and reads what each reports.

It does nothing until the operator has read Sites, which it does for the first job that names one, or when a site says
hello. A site whose Site is gone, or no longer admits a namespace, is told to run nothing there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from nats.aio.client import Client

from rljob_core.spec import API_VERSION, RLJob, Site
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event, Ref
from rljob_operator.decisions.job_sites import pools_at_sites
from rljob_operator.decisions.site_buckets import SiteBucketNames, hello_from_site
from rljob_operator.decisions.site_documents import (
    BEAT,
    PoolAddress,
    PoolDocument,
    SiteSettings,
    document_of,
    report_key,
)
from rljob_operator.decisions.site_reports import PoolReport, SiteContact, SitePool, new_events
from rljob_operator.decisions.site_status import site_status, why_lost
from rljob_operator.names import Role, child, managing_site
from rljob_operator.reconcile.hub_link import HubLink
from rljob_operator.reconcile.hub_streams import HubStreams
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_bucket import ERRORS, SiteBucket
from rljob_operator.reconcile.site_watch import SiteWatch
from rljob_operator.release import RELEASE

log = logging.getLogger(__name__)

_TALK_SECONDS = 1.0
_STATUS_SECONDS = 10.0
"""Between two writes of a Site's status, where only the time of its last beat has changed."""
_EVENTS_SECONDS = 60.0
"""Between two times that a pool at a site gives rise to events: a site may report others each second."""
_STRANGERS = 64
"""Sites without a Site whose hellos are remembered at once."""


class HubEnd:
    """The talk with all sites.

    Args:
        api: writes the status of Sites.
        cache: has the RolloutPools.
        sites: the cluster's Sites.
        connection: to the hub's nats-server, not yet connected.
        streams: joins the streams of jobs to those of the sites; None to leave that out.
        namespaces: that the operator watches; empty for all.
        changed: called with each job of which a site has reported something new, or is away.
        event: records an event about a job.
        release: of this operator.
        clock: returns the current time, with its time zone.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: KubeCache,
        sites: SiteWatch,
        connection: NatsConnection,
        streams: HubStreams | None = None,
        *,
        namespaces: Sequence[str] = (),
        changed: Callable[[JobKey], None],
        event: Callable[[JobKey, Event], Awaitable[None]] | None = None,
        release: str = RELEASE,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cache = cache
        self._sites = sites
        self._connection = connection
        self._streams = streams
        self._namespaces = namespaces
        self._changed = changed
        self._event = event
        self._release = release
        self._clock = clock
        self._links: dict[str, HubLink] = {}
        self._documents: dict[Ref, tuple[int, PoolDocument | None, str]] = {}
        """By RolloutPool: its resource version, what travels, and to which site; None of pools in this cluster."""
        self._strangers: set[str] = set()
        """Sites that have said hello and are not known: they may run pools of jobs that no longer name them."""
        self._seen: dict[str, dict[str, bytes]] = {}
        """By site, what the jobs have been reconciled with."""
        self._told: dict[PoolAddress, datetime] = {}
        """When pools gave rise to events, the last minute's."""
        self._written: dict[str, datetime] = {}
        """By site, when its status was written."""
        self._borders = None if streams is None else streams.borders
        if self._borders is not None:
            self._borders.sites, self._borders.changed = (lambda: sites.known), changed
        else:
            connection.subscribe(hello_from_site("*"), self._on_hello)

    def pools(self, job: RLJob) -> Mapping[str, SitePool]:
        """What is known of a job's pools at sites, by pool; without those of sites that were not read yet."""
        found: dict[str, SitePool] = {}
        for _path, pool, site in pools_at_sites(job):
            link = self._links.get(site)
            if link is None or not link.read:
                continue
            name = child(job.metadata.name, Role.ROLLOUT, pool.name)
            report = PoolReport.read(link.reports.entries.get(report_key((job.metadata.namespace, name))))
            trouble = link.trouble(self._clock())
            if trouble is None and self._borders is not None:
                trouble = self._borders.trouble(job, site)
            found[pool.name] = SitePool(site, report, link.away, trouble, link.lost)
        return found

    async def run(self) -> None:
        """Talk with all sites; returns only when cancelled."""
        while True:
            if self._strangers:
                with suppress(ApiError):  # a site says hello again
                    await self._sites.read()
            known = self._sites.known
            for name, site in known.sites.items():
                await self._attempt(name, self._talk(name, site))
                await self._attempt(name, self._judge(name, site))
            if self._sites.are_read and not known.unreadable:
                for name in (self._links.keys() | self._strangers) - self._sites.manifests().keys():
                    await self._attempt(name, self._withdraw(name))
            self._strangers.clear()
            await asyncio.sleep(_TALK_SECONDS)

    async def _attempt(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except ERRORS as error:
            log.warning("Site %s: %s", name, error)
        except ApiError as error:
            log.warning("Site %s: the API server: %s", name, error)
        except Exception:  # what one site says must not end the talk with the others
            log.exception("Site %s", name)

    async def _talk(self, name: str, site: Site) -> None:
        link, now = self._link(name, site.domain), self._clock()
        wanted = [d for d in self._wanted(name) if site.admits(d.namespace)]
        client = await self._exchange(link, wanted, site, now)
        if self._streams is not None and client is not None and link.trouble(now) is None:
            await self._streams.join(
                client, name, self._sites.known, link.pools, link.reports, event=self._event
            )

    async def _judge(self, name: str, site: Site) -> None:
        """Say whether a site is heard: also if nothing can be written to it."""
        link, now = self._link(name, site.domain), self._clock()
        if (manifest := self._sites.manifests().get(name)) is None:
            return  # it was deleted meanwhile
        link.lost = why_lost(manifest, link.contact, seconds=site.spec.lost_seconds, now=now)
        link.away = link.contact.away(now, timedelta(seconds=site.spec.grace_seconds))
        for key, event in self._mark(link):
            if self._event is not None:
                await self._event(key, event)
        await self._write_status(link, name, now)

    async def _withdraw(self, name: str) -> None:
        """Let a site run nothing whose Site is gone, for as long as it is heard."""
        link, now = self._links.get(name), self._clock()
        if link is None:
            client = None if self._borders is not None else self._connection.client
            if client is None:
                return
            bucket = SiteBucket(SiteBucketNames(name, name).pools)
            if not await bucket.read(client):
                return  # it has never been a site of this hub
            link = self._link(name, name)
            log.warning(
                "Site %s has said hello, and there is no Site of its name: it is to run nothing", name
            )
        if self._borders is not None:
            await self._borders.close(name, link.names.domain)
        client = await self._exchange(link, [], None, now)
        if self._streams is not None and client is not None:
            await self._streams.withdraw(client, link.pools)
        if link.is_silent(now):
            del self._links[name]

    async def _exchange(
        self, link: HubLink, wanted: Sequence[PoolDocument], site: Site | None, now: datetime
    ) -> Client | None:
        connection, names = self._connection, link.names
        if self._borders is not None:
            await self._borders.ensure(names.site, names.domain)
            connection = self._borders.talk(names.site, hello_from_site(names.site), self._on_hello)
        client = connection.client
        if client is not None:
            await link.talk(
                client,
                connection.connections,
                wanted,
                namespaces=self._namespaces,
                settings=None if site is None else SiteSettings(lost_seconds=site.spec.lost_seconds),
                now=now,
                bits_per_second=None if site is None else site.spec.link.bits_per_second,
            )
        return client

    def _link(self, name: str, domain: str) -> HubLink:
        names = SiteBucketNames(name, domain)
        link = self._links.get(name)
        if link is None or link.names != names:
            known = self._sites.manifests().get(name, {}).get("status", {})
            contact = SiteContact.known_from(known, self._clock())
            link = self._links[name] = HubLink(names, contact, release=self._release)
        return link

    def _wanted(self, site: str) -> Iterator[PoolDocument]:
        """The pools of a site, whether or not it admits their namespaces."""
        versions = self._cache.versions("RolloutPool")
        for ref in self._documents.keys() - versions.keys():
            del self._documents[ref]
        for ref, version in versions.items():
            if ref not in self._documents or self._documents[ref][0] != version:
                self._documents[ref] = version, *self._document(ref)
        return (document for _, document, where in self._documents.values() if document and where == site)

    def _document(self, ref: Ref) -> tuple[PoolDocument | None, str]:
        pool = self._cache.read(ref)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            return None, ""
        site = managing_site(pool["spec"].get("managedBy"))
        return (None, "") if site is None else (document_of(pool), site)

    def _mark(self, link: HubLink) -> list[tuple[JobKey, Event]]:
        """Let the jobs be reconciled of which something has changed; returns the new events of their pools."""
        site, entries = link.names.site, {k: v for k, v in link.reports.entries.items() if k != BEAT}
        entries["site"] = repr((link.away is not None, link.trouble(self._clock()), bool(link.lost))).encode()
        seen, events = self._seen.get(site, {}), []
        if entries == seen:
            return []
        everywhere = entries["site"] != seen.get("site")
        for _, document, where in self._documents.values():
            if document is None or where != site:
                continue
            key, job = report_key(document.address), (document.namespace, str(document.spec["job"]))
            before, after = seen.get(key), entries.get(key)
            if everywhere or after != before:
                self._changed(job)
            if before is None or after is None or after == before:
                continue
            found = new_events(site, document, PoolReport.read(before), PoolReport.read(after))
            if found and self._may_tell(document.address):
                events += [(job, event) for event in found]
        self._seen[site] = entries
        return events

    def _may_tell(self, pool: PoolAddress) -> bool:
        now = self._clock()
        self._told = {p: at for p, at in self._told.items() if (now - at).total_seconds() < _EVENTS_SECONDS}
        return self._told.setdefault(pool, now) is now

    async def _write_status(self, link: HubLink, name: str, now: datetime) -> None:
        manifest = self._sites.manifests().get(name)
        if manifest is None:
            return
        metadata, known = manifest["metadata"], manifest.get("status", {})
        status = site_status(
            known,
            link.contact,
            generation=metadata["generation"],
            now=now,
            pools=link.pools.content,
            trouble=link.trouble(now),
            lost=link.lost,
            obstacle=link.obstacle,
            unwritten=link.unwritten,
        )
        same = {**status, "lastBeat": None} == {**known, "lastBeat": None}
        written = self._written.get(name)
        if status == known or (same and written and (now - written).total_seconds() < _STATUS_SECONDS):
            return
        address = {"name": name, "uid": metadata["uid"]}
        body = {"apiVersion": API_VERSION, "kind": "Site", "metadata": address, "status": status}
        self._sites.take(await self._api.apply(body, subresource="status"))
        self._written[name] = now

    def _on_hello(self, subject: str, data: bytes) -> None:
        site = subject.split(".")[2]
        if (link := self._links.get(site)) is not None:
            link.hear(data, self._clock())
        elif len(self._strangers) < _STRANGERS and re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", site):
            self._strangers.add(site)
