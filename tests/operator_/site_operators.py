"""The parts of the operators of hub and site that talk to each other, in clusters of dictionaries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

from background import running
from dictionary_server import DictionaryServer
from site_servers import SITE
from small_job import make_small_job

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import rollout_pool
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.kube.api import KubeApi, Page
from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.port import Event, Manifest, Ref
from rljob_operator.decisions.site_reports import PoolReport, SitePool
from rljob_operator.reconcile.hub_end import HubEnd
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_bucket import ERRORS
from rljob_operator.reconcile.site_end import SiteEnd
from rljob_operator.reconcile.site_pools import SitePools
from rljob_operator.reconcile.site_watch import SiteWatch
from rljob_operator.release import RELEASE

JOB = ("default", "chain-sum")
DEPLOYMENT = Ref("Deployment", "default", "chain-sum-rollout-far")


class SiteStatusApi(KubeApi):
    """An API server of which one Site is listed and its status is written."""

    def __init__(self) -> None:
        metadata = {"name": SITE, "uid": "s", "generation": 1, "resourceVersion": "1"}
        self.site: Manifest = {"apiVersion": "rljob.dev/v1alpha1", "kind": "Site", "metadata": metadata}
        self.site["spec"] = {"namespaces": ["*"]}
        self._events: asyncio.Queue[tuple[str, Manifest]] = asyncio.Queue()

    def change(self, event: str = "MODIFIED", *, forget: str = "", **spec: Any) -> None:
        """As somebody changes the Site, or deletes it."""
        self.site = {**self.site, "spec": {**self.site["spec"], **spec}}
        if forget:
            self.site["metadata"] = {**self.site["metadata"], "annotations": {"rljob.dev/forget": forget}}
        self._events.put_nowait((event, self.site))

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        while True:
            event, site = await self._events.get()
            yield event, site

    async def pages(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Page]:
        yield Page([self.site], "1")

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        assert (manifest["kind"], subresource) == ("Site", "status")
        self.site = {**self.site, "status": manifest["status"]}
        return self.site

    def condition(self, kind: str, field: str = "status") -> str:
        conditions = self.site.get("status", {}).get("conditions", [])
        return next((str(c[field]) for c in conditions if c["type"] == kind), "")


class HubOperator:
    """The part of the hub's operator that talks to sites."""

    def __init__(
        self, url: str, defaults: ClusterDefaults, *, release: str = RELEASE, known: Manifest | None = None
    ) -> None:
        self.defaults = replace(defaults, sites=True, per_job=True)
        self.connection = NatsConnection(url)
        self.cache, self.api = KubeCache(), SiteStatusApi()
        if known is not None:
            self.api.site = known
        self.sites = SiteWatch(self.api, changed=lambda: None)
        self.changed: list[JobKey] = []
        self.events: list[tuple[JobKey, Event]] = []
        self.later = timedelta(0)
        self.links = HubEnd(
            self.api,
            self.cache,
            self.sites,
            self.connection,
            changed=self.changed.append,
            event=self._record,
            release=release,
            clock=lambda: datetime.now(UTC) + self.later,
        )
        self._version = 0

    async def _record(self, key: JobKey, event: Event) -> None:
        self.events.append((key, event))

    def job(self, name: str = "far", **pool: Any) -> RLJob:
        return make_small_job(rollout__pools=[{"name": name, "site": SITE, **pool}])

    def put(
        self, name: str = "far", *, generation: int = 1, noise: int = 0, uid: str = "hub-uid", **pool: Any
    ) -> None:
        """As the API server reports the RolloutPool; `noise` are bytes that no packing makes smaller."""
        job = self.job(name, **pool)
        made = rollout_pool(resolve_job(job, self.defaults), job.spec.rollout.pools[0], None)
        self._version += 1
        more: Manifest = {"uid": uid, "generation": generation, "resourceVersion": str(self._version)}
        if noise:
            more["labels"] = {**made["metadata"]["labels"], "noise": token_hex(noise)}
        self.cache.put({**made, "metadata": {**made["metadata"], **more}})

    def delete(self, name: str = "far") -> None:
        self.cache.forget(Ref("RolloutPool", "default", f"chain-sum-rollout-{name}"))

    def has_withdrawn(self) -> bool:
        """Whether the bucket that the site reads is written, and has no pool."""
        link = self.links._links.get(SITE)
        return (
            link is not None
            and bool(link.pools.entries)
            and not any(key.startswith("pool.") for key in link.pools.entries)
        )

    def pool(self) -> SitePool | None:
        return self.links.pools(self.job()).get("far")

    def report(self) -> PoolReport | None:
        pool = self.pool()
        return None if pool is None else pool.report

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        await self.sites.read()
        async with running(self.connection.run(), self.sites.run(), self.links.run()):
            yield


class SiteOperator:
    """The part of the site's operator that talks to the hub, in a cluster of one dictionary."""

    def __init__(
        self, url: str, server: DictionaryServer, defaults: ClusterDefaults, *, release: str = RELEASE
    ) -> None:
        self.connection = NatsConnection(url)
        self.later = timedelta(0)
        self.listened = 0.0
        """Seconds that its process is older."""
        self.end = SiteEnd(
            SITE,
            self.connection,
            release=release,
            clock=lambda: datetime.now(UTC) + self.later,
            monotonic=lambda: time.monotonic() + self.listened,
        )
        self.pools = SitePools(server, replace(defaults, per_job=True), SITE, clock=lambda: server.now)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        async with running(self.connection.run(), self._run()):
            yield

    async def _run(self) -> None:
        while True:
            with suppress(*ERRORS):
                if (client := self.connection.client) is not None:
                    wanted = self.end.wanted() if await self.end.read(client) else None
                    reports = {}
                    if wanted is not None and JOB[0] in wanted.namespaces:  # as `SiteController` does
                        _, reports = await self.pools.reconcile(JOB, wanted)
                    await self.end.tell(client, reports, wanted)
            await asyncio.sleep(0.05)
