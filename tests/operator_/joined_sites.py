"""The operators' ends of the talk between a hub and a site that joins the streams of one job, without Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any

from background import running
from nats.aio.client import RawCredentials
from small_job import make_small_job
from tests.waiting import until_async, within

from rljob_core.messages import SITE_SIGNALS, work_suffix
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames
from rljob_operator.cluster.kube.api import KubeApi, Page
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.kube.cluster import job_of
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event, Manifest, Ref
from rljob_operator.decisions.joined_streams import read_orders
from rljob_operator.decisions.site_documents import wanted_pools
from rljob_operator.nats.credentials import Issuer, operator_credentials
from rljob_operator.reconcile.hub_borders import HubBorders
from rljob_operator.reconcile.hub_end import HubEnd
from rljob_operator.reconcile.hub_streams import HubStreams
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.jobs_at_sites import JobsAtSites
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_access import BorderSite, OpenSite, SiteAccess
from rljob_operator.reconcile.site_bucket import ERRORS
from rljob_operator.reconcile.site_end import SiteEnd
from rljob_operator.reconcile.site_job_streams import SiteJobStreams
from rljob_operator.reconcile.site_watch import SiteWatch
from rljob_runtime.messaging.nats.store import NatsStore

JOB = ("default", "chain-sum")


async def crosses(hub: NatsStore, site: NatsStore, text: str, *, name: str) -> None:
    """A payload, a signal and a beat reach the hub, and a version and work the site of this name."""
    data = text.encode()
    await site.publish(Channel.TRAJECTORIES, "payload", data)
    await hub.publish(Channel.VERSIONS, "policy", data)
    await hub.publish(Channel.WORK, work_suffix("pod-0.a", site=name), data)

    async def arrived() -> bool:
        found = [
            await hub.last(Channel.TRAJECTORIES),
            await site.last(Channel.VERSIONS),
            await site.last(Channel.WORK),
        ]
        return all(message is not None and message.data == data for message in found)

    async def beat() -> None:
        while True:
            await site.put_signal("engine.a", data)
            await hub.put_site_beat(name, data)
            await asyncio.sleep(0.2)

    beats = asyncio.create_task(beat())
    await until_async(arrived)
    seen: dict[str, bytes | None] = {}
    async with within():
        async for key, value in hub.watch_signals():
            seen[key] = value
            if {seen.get("engine.a"), seen.get(f"{SITE_SIGNALS}{name}")} == {data}:
                break
    beats.cancel()


def names_of(uid: str) -> StreamNames:
    """Of the job with that UID."""
    return StreamNames.of_job(namespace=JOB[0], job=JOB[1], uid=uid)


def connection_of(url: str, issuer: Issuer | None) -> NatsConnection:
    """The operator's connection."""
    credentials = None if issuer is None else RawCredentials(operator_credentials(issuer))
    return NatsConnection(url, credentials=credentials)


class OneSiteApi(KubeApi):
    """An API server that has one Site, whose status nobody reads, and jobs.

    Attributes:
        jobs: that exist.
        answers: whether it says which.
    """

    def __init__(self, site: str) -> None:
        metadata = {"name": site, "uid": "s", "generation": 1, "resourceVersion": "1"}
        kind = {"apiVersion": "rljob.dev/v1alpha1", "kind": "Site"}
        self.jobs: dict[Ref, Manifest] = {}
        self.answers = True
        self.site: Manifest = {**kind, "metadata": metadata, "spec": {"namespaces": ["*"]}}
        self._events: asyncio.Queue[tuple[str, Manifest]] = asyncio.Queue()

    def change(self, event: str = "MODIFIED", **spec: Any) -> None:
        """As somebody changes the Site, or deletes it."""
        self.site = {**self.site, "spec": {**self.site["spec"], **spec}}
        self._events.put_nowait((event, self.site))

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """What `change` says."""
        while True:
            yield await self._events.get()

    async def pages(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Page]:
        """The Site."""
        yield Page([self.site], "1")

    async def find(self, ref: Ref) -> Manifest | None:
        """The job."""
        if not self.answers:
            raise ApiError(0, "", "no answer")
        return self.jobs.get(ref)

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        """Take the status."""
        self.site = {**self.site, "status": manifest["status"]}
        return self.site


class HubSide:
    """The hub's operator, as far as it talks to one site."""

    def __init__(self, url: str, site: str, issuer: Issuer | None = None) -> None:
        self.connection = connection_of(url, issuer)
        self.cache = KubeCache()
        self.api = OneSiteApi(site)
        self.sites = SiteWatch(self.api, changed=lambda: None)
        self.changed: list[tuple[str, str]] = []
        self.events: list[tuple[tuple[str, str], Event]] = []
        borders = None if issuer is None else HubBorders(self.connection, issuer)
        self.of_jobs = JobStreams(self.connection, issuer, borders=borders)
        self.streams = HubStreams(JobsAtSites(self.cache, self.api), self.connection, self.of_jobs)
        self._end = HubEnd(
            self.api,
            self.cache,
            self.sites,
            self.connection,
            self.streams,
            changed=self.changed.append,
            event=self._record,
        )
        self._site = site
        self._version = 0

    async def _record(self, job: tuple[str, str], event: Event) -> None:
        self.events.append((job, event))

    def put(self, uid: str = "u-1", *, spec: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> None:
        """As the API server reports the RLJob; `spec` has fields that are added, `pools` are its own."""
        manifest = self._manifest(uid, **more)
        manifest = self.api.jobs[Ref("RLJob", *JOB)] = {**manifest, "spec": {**manifest["spec"], **spec}}
        self.cache.put(manifest)

    async def prepare(self, uid: str = "u-1", **more: Any) -> None:
        """Let the job have accounts and streams, as the operator does before its pods."""
        await until_async(lambda: self.connection.client)
        job = job_of(self._manifest(uid, **more))
        await until_async(lambda: self.of_jobs.prepare(job, 1 << 28))

    @property
    def has_caught_up(self) -> bool:
        """Whether hub and site have heard each other, and have the same."""
        conditions = {c["type"]: c["status"] for c in self.api.site.get("status", {}).get("conditions", [])}
        return (conditions.get("Connected"), conditions.get("CaughtUp")) == ("True", "True")

    def delete(self) -> None:
        """The RLJob is gone."""
        self.api.jobs.clear()
        self.cache.forget(Ref("RLJob", *JOB))

    def _manifest(self, uid: str, pools: Sequence[Any] = (), **more: Any) -> Manifest:
        self._version += 1
        pools = [*pools] or [{"name": "near"}, {"name": "far", "site": self._site}]
        job = make_small_job(rollout__pools=pools, weights__transport="Nats")
        made = job.model_dump(mode="json", by_alias=True, exclude_none=True)
        metadata = {"namespace": JOB[0], "name": JOB[1], "uid": uid, "generation": 1}
        return {**made, "metadata": {**metadata, "resourceVersion": str(self._version)}, **more}

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run it."""
        await self.sites.read()
        async with running(self.connection.run(), self.sites.run(), self._end.run()):
            yield
        if self.of_jobs.borders is not None:
            await self.of_jobs.borders.aclose()


class SiteSide:
    """The same of the site's operator."""

    def __init__(self, url: str, site: str, issuer: Issuer | None = None) -> None:
        self.connection = connection_of(url, issuer)
        self.access: SiteAccess = OpenSite(self.connection)
        if issuer is not None:
            self.access = BorderSite(self.connection, issuer, site)
        self.end = SiteEnd(site, self.access.talk())
        self.streams = SiteJobStreams(site, self.access)
        self.busy: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run it."""
        async with running(self.connection.run(), self._run()):
            yield
        await self.access.aclose()

    async def _run(self) -> None:
        while True:
            with suppress(*ERRORS):
                await self.access.ready()
                if (client := self.access.talk().client) is not None:
                    wanted = None
                    if await self.end.read(client):
                        wanted = wanted_pools(self.end.pools)
                        orders, number = read_orders(self.end.pools), self.connection.connections
                        reported = self.end.reported
                        await self.streams.join(orders, self.busy, connections=number, reported=reported)
                    await self.end.tell(client, {}, wanted, self.streams.reports)
            await asyncio.sleep(0.05)
