"""`SiteJobStreams` is a site's part of joining the streams of jobs to those of the hub (`decisions.joined_streams`)."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from nats.aio.client import Client

from rljob_core.ports import Channel
from rljob_core.site_streams import SiteStreams
from rljob_core.stream_definitions import Definition
from rljob_core.stream_names import StreamNames
from rljob_operator.decisions.joined_streams import (
    COPY,
    CopyEnd,
    CopyId,
    JobUid,
    StreamsOrder,
    StreamsOrders,
    StreamsReport,
)
from rljob_operator.decisions.site_plan import JobAddress
from rljob_operator.decisions.weight_inspections import versions_at_copy
from rljob_operator.reconcile.inspected_weights import count_weights
from rljob_operator.reconcile.site_access import SiteAccess
from rljob_operator.reconcile.site_bucket import ERRORS
from rljob_operator.reconcile.stream_requests import (
    ask,
    consumer_state,
    copy_of,
    create_site_consumer,
    create_stream,
    delete_confirmed,
    delete_consumer,
    delete_streams,
    limit,
    message_id,
    server_id,
    stream_info,
)

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 30.0
"""After which a job's streams are looked at again, and superfluous ones looked for."""
_ID_BYTES = 8


@dataclass
class _Held:
    """What is known of one job.

    Attributes:
        of: what `report` was made of.
        by: when it is made again in any case.
        wanted: by stream, ids of copies that the site wants to make.
    """

    report: StreamsReport
    of: object = None
    by: float = 0.0
    wanted: dict[str, CopyId] = field(default_factory=dict)


class SiteJobStreams:
    """The streams of jobs at one site.

    Args:
        site: its name.
        access: to the streams of jobs.
    """

    def __init__(self, site: str, access: SiteAccess) -> None:
        self._site = site
        self._access = access
        self._held: dict[JobAddress, _Held] = {}
        self._remembered: set[JobUid] | None = None
        """Jobs of which the server may have something that `SiteAccess.jobs` does not find."""
        self._swept: tuple[object, float] = (None, 0.0)

    @property
    def reports(self) -> dict[JobAddress, StreamsReport]:
        """What the hub is told of each job."""
        return {address: held.report for address, held in self._held.items()}

    def problem(self, job: JobAddress) -> str:
        """Why the site's server has not all streams of a job; empty if it has, or waits for the hub."""
        held = self._held.get(job)
        return "" if held is None else held.report.problem

    async def join(
        self,
        orders: StreamsOrders,
        busy: Collection[JobAddress],
        *,
        connections: int,
        reported: Iterable[JobUid] = (),
    ) -> None:
        """Do what is to be done.

        Args:
            orders: what the site is to have.
            busy: jobs that have pools in the site's cluster, whose engines may still store something.
            connections: number of the connection to the site's server.
            reported: the jobs of which this operator has said something before it was started.

        Raises:
            StreamRefused, TimeoutError, nats.errors.Error: superfluous streams cannot be found, or deleted.
        """
        if self._remembered is None:
            self._remembered = set(reported)
            for job in self._remembered:  # so that it is said until it is removed
                self._held[job[:2]] = _Held(StreamsReport(uid=job[2]))
                order = orders.jobs.get(job[:2])
                if order is not None and order.uid == job[2]:
                    self._access.remember(job, self._definitions(job[:2], order))
        for address, order in orders.jobs.items():
            held = self._held.get(address)
            if held is None or held.report.uid != order.uid:
                held = self._held[address] = _Held(StreamsReport(uid=order.uid))
            of = order, connections
            if held.of == of and time.monotonic() < held.by:
                continue
            self._remembered.add((*address, order.uid))
            try:
                held.report = await self._join(address, order, held)
                held.of, held.by = of, time.monotonic() + _AGAIN_SECONDS
            except ERRORS as error:
                if held.report.problem != str(error):
                    log.warning("%s: its streams: %s", "/".join(address), error)
                held.report = held.report.model_copy(update={"problem": str(error)[:4096]})
        if self._swept[0] != orders or time.monotonic() > self._swept[1]:
            left = await self._sweep(orders, busy)
            self._swept = None if left else orders, time.monotonic() + _AGAIN_SECONDS

    def _definitions(self, address: JobAddress, order: StreamsOrder) -> SiteStreams:
        return SiteStreams(
            StreamNames.of_job(namespace=address[0], job=address[1], uid=order.uid),
            self._site,
            order.trajectory_bytes,
            bits_per_second=order.bits_per_second,
            weights=order.weights,
        )

    async def _join(self, address: JobAddress, order: StreamsOrder, held: _Held) -> StreamsReport:
        job, streams = (*address, order.uid), self._definitions(address, order)
        await self._access.admit(job, streams, order.generation)
        async with self._access.client(job) as client:
            return await self._create(client, streams, order, held)

    async def _create(
        self, client: Client, streams: SiteStreams, order: StreamsOrder, held: _Held
    ) -> StreamsReport:
        names = streams.names
        server, copies, complete = await server_id(client), dict[str, CopyId](), True
        for definition in streams.at_site():
            name = definition["name"]
            if name in streams.copies:
                copies[name], there = await self._copy(client, definition, order, held)
                complete = complete and there
            else:
                await create_stream(client, definition)
        await limit(client, names.stream(Channel.TRAJECTORIES), order.trajectory_bytes)
        for consumer in streams.site_consumers(server):
            for name in await _consumers(client, consumer.stream):
                if consumer.replaces(name):
                    await delete_consumer(client, consumer.stream, name)
            if (state := await consumer_state(client, consumer)) is None:
                await create_site_consumer(client, consumer)
            elif consumer.stream in streams.outboxes:
                await delete_confirmed(client, consumer, state)
        ends = held.report.ends
        if complete and (held.report.hub != order.hub or held.report.copies != copies):
            ends = {copies[mirror]: await _end(client, mirror) for mirror in streams.mirrors}
        hub = order.hub if complete else held.report.hub
        report = StreamsReport(uid=order.uid, copies=copies, server=server, ends=ends, hub=hub)
        asked = order.inspect
        if asked is None or not complete:
            return report
        if (asked.server, asked.copy_id) != (server, copies.get(names.stream(Channel.WEIGHTS))):
            return report
        before, versions = held.report, held.report.versions
        if before.inspected != asked:
            versions = versions_at_copy(await count_weights(client, names))
        return report.model_copy(update={"inspected": asked, "versions": versions})

    async def _copy(
        self, client: Client, definition: Definition, order: StreamsOrder, held: _Held
    ) -> tuple[CopyId, bool]:
        """Id of a stream that reads the hub's, and whether it exists."""
        name = definition["name"]
        info = await stream_info(client, name)
        if info is not None:
            copy = copy_of(info["config"])
            if copy and copy not in order.lost:
                return copy, True
            log.warning("%s is not what the hub has, as a server has lost something: it is made again", name)
            await delete_streams(client, [name])
        wanted = held.wanted.setdefault(name, secrets.token_hex(_ID_BYTES))
        if order.begun.get(name) != wanted:
            return wanted, False
        await create_stream(client, {**definition, "metadata": {COPY: wanted}})
        del held.wanted[name]
        return wanted, True

    async def _sweep(self, orders: StreamsOrders, busy: Collection[JobAddress]) -> bool:
        """Delete the streams of jobs that the site is to have none of; returns whether some have to wait."""
        left, known = False, (self._remembered or set()) | await self._access.jobs()
        for job in known:
            if orders.lists(job):
                continue
            if job[:2] in busy and job[:2] not in orders.jobs:
                left = True
                continue
            await self._access.remove(job)
            (self._remembered or set()).discard(job)
        gone = {job[:2] for job in known if not orders.lists(job) and job[:2] not in orders.jobs}
        if not left:
            for address in [a for a in self._held if a in gone or _is_superfluous(a, orders)]:
                del self._held[address]
        return left


def _is_superfluous(address: JobAddress, orders: StreamsOrders) -> bool:
    return address[0] in orders.namespaces and address not in orders.jobs


async def _end(client: Client, stream: str) -> CopyEnd:
    info = await stream_info(client, stream)
    last = 0 if info is None else int(info["state"]["last_seq"])
    return CopyEnd(sequence=last, message=(await message_id(client, stream, last) or "") if last else "")


async def _consumers(client: Client, stream: str) -> list[str]:
    """Names of a stream's consumers; of an outbox, there are one or two."""
    answer = await ask(client, f"$JS.API.CONSUMER.NAMES.{stream}", b"{}")
    return answer.get("consumers") or []
