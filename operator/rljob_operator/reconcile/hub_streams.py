"""`HubStreams` is the hub's part of joining the streams of jobs to those of sites (`decisions.joined_streams`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from nats.aio.client import Client

from rljob_core.ports import Channel
from rljob_core.site_streams import SiteStreams, is_beyond, with_source
from rljob_core.spec import RLJob, Site
from rljob_core.stream_names import StreamNames
from rljob_operator.cluster.kube.cache import JobKey
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event
from rljob_operator.decisions.job_sites import KnownSites
from rljob_operator.decisions.joined_streams import (
    CopyInspection,
    JobUid,
    StreamsOrder,
    StreamsReport,
    orders_text,
    read_orders,
    read_reports,
    stream_namespaces,
    streams_key,
)
from rljob_operator.decisions.stream_storage import trajectory_room
from rljob_operator.decisions.weight_inspections import next_look, weights_lost
from rljob_operator.reconcile.hub_borders import HubBorders
from rljob_operator.reconcile.inspected_weights import inspect_copy
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.jobs_at_sites import JobsAtSites
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_bucket import ERRORS, SiteBucket
from rljob_operator.reconcile.stream_requests import (
    consumer_state,
    create_site_consumer,
    delete_consumer,
    message_id,
    server_id,
    stream_info,
    update_stream,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _JoinedJob:
    """What was joined."""

    of: object
    order: StreamsOrder
    by: float
    pause: float


class HubStreams:
    """The streams of the hub's jobs, as sites join them.

    Args:
        jobs: that have pools at sites.
        connection: to the hub's server.
        streams: give access to the streams of jobs.
        namespaces: that the operator watches; empty for all.
    """

    def __init__(
        self,
        jobs: JobsAtSites,
        connection: NatsConnection,
        streams: JobStreams,
        *,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._namespaces = namespaces
        self._jobs = jobs
        self._seen: dict[tuple[str, JobUid], _JoinedJob] = {}
        self._failed: set[tuple[str, JobUid]] = set()
        self._lost_weights = LostWeights()

    @property
    def borders(self) -> HubBorders | None:
        """The accounts between the hub and sites, if its server asks for credentials."""
        return self._streams.borders

    async def join(
        self,
        client: Client,
        name: str,
        known: KnownSites,
        pools: SiteBucket,
        reports: SiteBucket,
        *,
        event: Callable[[JobKey, Event], Awaitable[None]] | None = None,
    ) -> None:
        """Do what is to be done for one site.

        Args:
            client: at the hub's server.
            name: of the site.
            known: the Sites.
            pools: the bucket that the hub writes, as it was read last.
            reports: the bucket that the site writes.
            event: records an event about a job.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: an order cannot be written.
            ApiError: it is not certain which jobs there are.
        """
        if (site := known.sites.get(name)) is None:
            return  # it was deleted, or changed, meanwhile
        held = read_orders(pools.entries).jobs
        found: dict[str, dict[str, StreamsOrder]] = {n: {} for n in self._listed(pools.entries)}
        if (ordered := await self._jobs.find(name, known, held, found)) is None:
            return
        jobs = ordered.readable
        for (namespace, job_name), order_kept in ordered.kept.items():
            found[namespace][job_name] = order_kept
        reported = read_reports(reports.entries, [(*k, job.metadata.uid or "") for k, job in jobs.items()])
        for key, job in jobs.items():
            uid = job.metadata.uid or ""
            if (before := held.get(key)) is not None and before.uid != uid:
                before = None
            report = reported.get((*key, uid))
            order = await self._order(name, site, job, report, before)
            if order is not None:
                found.setdefault(key[0], {})[key[1]] = order
        for namespace, orders in found.items():
            text = orders_text(orders)
            if pools.entries.get(streams_key(namespace)) != text:
                await pools.put(client, streams_key(namespace), text)
        if event is not None:
            await self._lost_weights.tell(name, jobs, event)
        if self.borders is not None:
            through = [job for (ns, n), job in jobs.items() if n in found.get(ns, {}) and site.admits(ns)]
            await self.borders.let_through(name, site.domain, through)
        alive = {(name, (*key, job.metadata.uid or "")) for key, job in jobs.items()}
        for gone in {at for at in self._seen if at[0] == name} - alive:
            del self._seen[gone]

    async def withdraw(self, client: Client, pools: SiteBucket) -> None:
        """Let a site have no streams, as its Site is gone; arguments and errors as of `join`."""
        for namespace in self._listed(pools.entries):
            if pools.entries.get(streams_key(namespace)) != orders_text({}):
                await pools.put(client, streams_key(namespace), orders_text({}))

    def _listed(self, held: Mapping[str, bytes]) -> set[str]:
        """The namespaces that have a list which is this operator's."""
        return {n for n in stream_namespaces(held) if not self._namespaces or n in self._namespaces}

    async def _order(
        self, name: str, site: Site, job: RLJob, report: StreamsReport | None, before: StreamsOrder | None
    ) -> StreamsOrder | None:
        """Join one job; None if it has no streams yet. One that was not prepared yet keeps the order that it has."""
        metadata = job.metadata
        at = name, (metadata.namespace, metadata.name, metadata.uid or "")
        bits, connections = site.spec.link.bits_per_second, self._connection.connections
        generation = job.spec.nats.credentials_generation
        of = report, generation, job.spec.weights.needs_uri, bits, site.domain, connections
        seen = self._seen.get(at)
        if seen is not None and seen.of == of and time.monotonic() < seen.by:
            return seen.order
        if not self._streams.has_account(job):
            return before
        names = StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")
        streams = SiteStreams(
            names,
            name,
            trajectory_room(job.spec, 0),
            bits_per_second=bits,
            weights=not job.spec.weights.needs_uri,
            domain=site.domain,
        )
        try:
            async with self._streams.client(job) as client:
                order, holes = await _join(
                    client,
                    streams,
                    report,
                    None if seen is None else seen.order,
                    asked=None if before is None else before.inspect,
                )
            if order is not None:
                order = order.model_copy(update={"generation": generation})
        except ERRORS as error:
            if at not in self._failed:
                log.warning(
                    "%s/%s at Site %s: its streams: %s", metadata.namespace, metadata.name, name, error
                )
            self._failed.add(at)
            return before
        self._failed.discard(at)
        if holes:
            self._lost_weights.note(name, (metadata.namespace, metadata.name), holes)
        if order is not None:
            pause = next_look(order.inspect, *(() if seen is None else (seen.order.inspect, seen.pause)))
            self._seen[at] = _JoinedJob(of, order, time.monotonic() + pause, pause)
        return order


async def _join(
    client: Client,
    streams: SiteStreams,
    report: StreamsReport | None,
    before: StreamsOrder | None,
    *,
    asked: CopyInspection | None,
) -> tuple[StreamsOrder | None, list[str]]:
    """Do the hub's part for one job.

    Returns the order, None if there is none yet, and keys of versions of which the site is newly known to lack a part.

    Raises:
        StreamRefused, TimeoutError, nats.errors.Error: the server does not do what it is asked.
    """
    names = streams.names
    for stream in names.all_streams:
        if (info := await stream_info(client, stream)) is None:
            return None, []  # the job has just begun
        if stream == names.stream(Channel.TRAJECTORIES) and info["config"]["max_bytes"] > 0:
            streams = replace(streams, trajectory_bytes=info["config"]["max_bytes"])
    hub, begun = await server_id(client), {}
    wanted = {} if report is None else report.copies
    for consumer in streams.hub_consumers():
        held, copy = await consumer_state(client, consumer), wanted.get(consumer.stream)
        if copy and (held is None or held.copy_id != copy):
            if held is not None:
                await delete_consumer(client, consumer.stream, consumer.definition["name"])
            await create_site_consumer(client, consumer, copy=copy)
        if copy:
            begun[consumer.stream] = copy
    if report is not None and report.server:
        for stream, source in streams.hub_sources(report.server).items():
            if (info := await stream_info(client, stream)) is None:
                return None, []  # the job is deleted
            if (config := with_source(info["config"], source)) is not None:
                await update_stream(client, config)
    lost = () if before is None else tuple(copy for copy in before.lost if copy in wanted.values())
    if report is not None and report.hub == hub:
        lost = (*lost, *await _lost(client, streams, report, lost))
    inspect, holes = await inspect_copy(client, streams, report, asked, lost=lost)
    if holes and inspect is not None:
        lost = (*lost, inspect.copy_id)
    order = StreamsOrder(
        uid=names.prefix.rpartition("_")[2],
        trajectory_bytes=streams.trajectory_bytes,
        weights=streams.weights,
        bits_per_second=None if streams.bits_per_second is None else round(streams.bits_per_second),
        hub=hub,
        begun=begun,
        lost=lost,
        inspect=inspect,
    )
    return order, holes


async def _lost(
    client: Client, streams: SiteStreams, report: StreamsReport, known: Collection[str]
) -> list[str]:
    """The copies that have what the hub has lost: they would take nothing at those sequences."""
    found = []
    for mirror in streams.mirrors:
        copy = report.copies.get(mirror, "")
        end = report.ends.get(copy)
        if copy in known or end is None or not end.sequence:
            continue
        info = await stream_info(client, mirror)
        if info is None:
            continue
        beyond = is_beyond(end.sequence, int(info["state"]["last_seq"]))
        if not beyond and end.message:
            original = await message_id(client, mirror, end.sequence)
            beyond = original is not None and original != end.message  # None: it was deleted here
        if beyond:
            found.append(copy)
    return found


class LostWeights:
    """What sites have lost, and nobody was told yet."""

    def __init__(self) -> None:
        self._lost: dict[tuple[str, JobKey], Sequence[str]] = {}

    def note(self, site: str, job: JobKey, versions: Sequence[str]) -> None:
        """Take keys of versions of a job's weights that a site has lost."""
        log.warning("%s: %s", "/".join(job), weights_lost(site, versions))
        self._lost[site, job] = versions

    async def tell(
        self, site: str, jobs: Collection[JobKey], event: Callable[[JobKey, Event], Awaitable[None]]
    ) -> None:
        """Record what one site has lost.

        Args:
            site: its name.
            jobs: that there are; of others, nothing is recorded.
            event: records an event about a job; what it does not take is tried again.
        """
        for at, versions in list(self._lost.items()):
            if at[0] != site:
                continue
            if at[1] in jobs:
                try:
                    await event(at[1], Event("Warning", "SiteWeightsLost", weights_lost(site, versions)))
                except ApiError as error:
                    log.warning("%s: the event SiteWeightsLost: %s", "/".join(at[1]), error)
                    continue
            del self._lost[at]
