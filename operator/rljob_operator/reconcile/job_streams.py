"""The operator's requests to NATS about one job: create its accounts and streams, enlarge and read them, remove all.

Where the operator issues the credentials of jobs, each job has accounts of its own (`nats.job_accounts`): the operator
connects to the one with the streams for as long as a request takes. On a server that authenticates nobody, the job's
coordinator creates the streams, and the operator uses its own connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import nats.errors
from nats.aio.client import Client, RawCredentials

from rljob_core.ports import Channel
from rljob_core.queue_definitions import shared_queues
from rljob_core.spec import RLJob
from rljob_core.stream_definitions import GROWING, stream_definitions
from rljob_core.stream_names import StreamNames
from rljob_operator.decisions.pods import Trouble
from rljob_operator.decisions.stream_storage import (
    Room,
    Storage,
    StreamUse,
    first_limits,
    in_gb,
    in_words,
    job_storage,
    may_begin,
    most_of_namespace,
)
from rljob_operator.nats.credentials import STREAMS, Issuer, JobKeys, stream_credentials
from rljob_operator.nats.job_accounts import connections_of, job_accounts
from rljob_operator.nats.permissions import REPORT
from rljob_operator.reconcile.engine_loads import EngineLoads
from rljob_operator.reconcile.hub_borders import HubBorders
from rljob_operator.reconcile.nats_connection import NatsConnection, brief_client
from rljob_operator.reconcile.prepared_jobs import PreparedJobs
from rljob_operator.reconcile.server_storage import ServerStorage, server_storage
from rljob_operator.reconcile.stream_requests import (
    TIMEOUT_SECONDS,
    StreamRefused,
    ask,
    count_servers,
    create,
    create_queue,
    delete_streams,
    give_account,
    limit,
    replicas_of,
    replicate,
    stream_uses,
)

log = logging.getLogger(__name__)

_LARGEST_ACCOUNT = 24
"""Bits of the number of megabytes that an account may have."""


class JobStreams:
    """Requests about the accounts and streams of jobs; those on another server are left to that server's owner.

    Args:
        connection: to the server, as a user who may create accounts where there is an issuer.
        issuer: what accounts and credentials are made from; None if the server authenticates nobody.
        borders: the accounts between the server and sites; None if sites are not told apart by accounts.
        most: bytes of one replica that the streams of a job may take together; None for a share of a server.
        most_of_namespace: bytes that those of all jobs of a namespace may take; None for a share of the servers.
    """

    def __init__(
        self,
        connection: NatsConnection,
        issuer: Issuer | None = None,
        *,
        borders: HubBorders | None = None,
        most: int | None = None,
        most_of_namespace: int | None = None,
    ) -> None:
        self._connection = connection
        self._issuer = issuer
        self.borders = borders
        self._most = most
        self._most_of_namespace = most_of_namespace
        self._refusals: dict[str, str] = {}
        """By UID, why a job has not all of its streams."""
        self._short: dict[str, str] = {}
        """By UID, why a job's streams have less room than they should."""
        self._prepared = PreparedJobs()
        self._preparing = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """By namespace."""

    def trouble(self, job: RLJob) -> Trouble | None:
        """Why a job cannot begin, or soon not continue, as was found when its streams were last prepared; or None."""
        uid = job.metadata.uid or ""
        if uid in self._refusals:
            return Trouble("StreamsRefused", self._refusals[uid])
        return Trouble("StreamsFull", self._short[uid]) if uid in self._short else None

    async def prepare(
        self, job: RLJob, size: int, *, restorable: bool = False, resting: bool = False
    ) -> bool:
        """Let a job have its accounts and streams, and room for `size` bytes of trajectories.

        Args:
            job: the job.
            size: bytes that its stream of trajectories is to hold.
            restorable: whether its streams may be filled from a backup.
            resting: whether it does not run: its streams give back the room that they do not use. Those of a job
                that runs stay as they are, and grow at most.

        Returns:
            True once it has all that, until the server is another one.
        """
        if not self._serves(job):
            return True  # the coordinator's pod creates and enlarges them
        uid = job.metadata.uid or ""
        try:
            # One after the other, or they would all take the room that the namespace has left.
            async with self._preparing[job.metadata.namespace], asyncio.timeout(TIMEOUT_SECONDS):
                done = await self._prepare(job, size, restorable=restorable, resting=resting)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            log.warning("%s/%s: its streams: %r", job.metadata.namespace, job.metadata.name, error)
            return False
        except StreamRefused as error:
            log.warning("%s/%s: its streams: %s", job.metadata.namespace, job.metadata.name, error)
            self._refusals[uid] = str(error)
            return False
        if done:
            self._refusals.pop(uid, None)
        return done

    async def _prepare(self, job: RLJob, size: int, *, restorable: bool, resting: bool) -> bool:
        system = self._connection.client
        if system is None:
            return False
        asked, names = job.spec.nats.replicas, _names(job)
        if self._issuer is None:
            if asked is not None:
                for stream in names.all_streams:
                    await replicate(system, stream, asked)
            return await limit(system, names.stream(Channel.TRAJECTORIES), size)
        replicas = replicas_of(job, await count_servers(system))
        given, held = await self._storage(
            job, self._issuer, system, size=size, replicas=replicas, resting=resting
        )
        shrunk = {
            name: most for name, most in given.limits.items() if name in held and most < held[name].limit
        }
        if shrunk:
            # Before their account, which has room for all of them at any time.
            async with self.client(job) as client:
                if not all(
                    [await limit(client, name, most, at_least=False) for name, most in shrunk.items()]
                ):
                    return False
        # Servers that were apart take the token with the greatest revision. An account has less than before only once
        # its job rests, and more again in a later generation, which resumes it; that the job was restorable ends later.
        state = 2 * (job.metadata.generation or 0) + resting
        revision = (state << _LARGEST_ACCOUNT) + (given.allowed >> 20) + (not restorable)
        keys = JobKeys.of(job, self._issuer)
        crossings = []
        if self.borders is not None:
            crossings = await self.borders.crossings(job)
            revision = self.borders.revision(job, revision, crossings)
        accounts = job_accounts(
            keys,
            revision=revision,
            storage_bytes=given.allowed,
            connections=connections_of(job.spec),
            restorable=restorable,
            crossings=crossings,
        )
        for token in accounts.tokens:
            await give_account(system, token)
        key = job.metadata.namespace, job.metadata.name
        growing = {
            name: given.limits.get(name, 0)
            for name in (names.all_streams if resting else map(names.stream, GROWING))
        }
        self._prepared.add(
            accounts.streams, key, allowed=given.allowed, asked=asked, replicas=replicas, growing=growing
        )
        definitions = stream_definitions(
            names, trajectory_bytes=size, replicas=replicas, metrics_to=REPORT, limits=given.limits
        )
        async with self.client(job) as client:
            for definition in definitions:
                if not await create(client, definition):
                    await replicate(client, definition["name"], replicas, at_least=asked is None)
            limited = [await limit(client, name, most) for name, most in given.limits.items()]
            for queue in shared_queues(per_group=bool(job.spec.reward.per_group)):
                await create_queue(client, names.stream(queue.channel), queue.definition(names))
        return all(limited) and (resting or given.limits.get(names.stream(Channel.TRAJECTORIES), 0) >= size)

    async def _storage(
        self, job: RLJob, issuer: Issuer, system: Client, *, size: int, replicas: int, resting: bool
    ) -> tuple[Storage, Mapping[str, StreamUse]]:
        """How much the streams of a job may hold, and what they do; what is short of that is remembered.

        Raises:
            StreamRefused: there is no room.
        """
        uid, names = job.metadata.uid or "", _names(job)
        room = self._room(await server_storage(system), job, JobKeys.of(job, issuer).account(STREAMS))
        held: dict[str, StreamUse] = {}
        if room.used or room.allowed is not None:
            async with self.client(job) as client:
                held = await stream_uses(client, names.all_streams)
        given = job_storage(
            names, room, held, trajectory_bytes=size, replicas=replicas, most=self._most, resting=resting
        )
        if given.allowed < room.used:
            raise StreamRefused(f"the job's streams take {in_gb(room.used)}: {given.short}")
        if not may_begin(names, held, given, trajectory_bytes=size, resting=resting):
            # A server that starts with an account that it has no room for serves none of that account's streams.
            needed = sum(first_limits(names, size, resting=resting).values())
            raise StreamRefused(f"the job needs {in_gb(needed)} to begin: {given.short}")
        before = self._short.pop(uid, None)
        if given.short:
            self._short[uid] = in_words(room, given)
            if before is None:  # it is looked at every few seconds
                log.warning("%s/%s: %s", job.metadata.namespace, job.metadata.name, self._short[uid])
        return given, held

    def _room(self, found: ServerStorage, job: RLJob, account: str) -> Room:
        """What the account of a job has and may get, beside the accounts of its namespace that were prepared."""
        most = self._most_of_namespace
        if most is None:
            most = most_of_namespace(found.servers * found.capacity)
        known = {account: 0, **self._prepared.of_namespace(job.metadata.namespace)}
        taken = sum(max(allowed, found.room(one).allowed or 0) for one, allowed in known.items())
        return replace(found.room(account), namespace_free=most - taken)

    def has_account(self, job: RLJob) -> bool:
        """Whether `client` finds the account of a job's streams: the server looks for one that it lacks for seconds."""
        return self._issuer is None or JobKeys.of(job, self._issuer).account(STREAMS) in self._prepared

    async def outgrown(self) -> list[tuple[str, str]]:
        """Namespaces and names of the jobs that `prepare` may give more than they have: room, or replicas."""
        system = self._connection.client
        if not self._prepared or system is None:
            return []
        try:
            found = await server_storage(system)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            log.info("the storage of the NATS servers cannot be read: %r", error)
            return []
        return self._prepared.outgrown(found)

    async def remove(self, job: RLJob) -> None:
        """Delete all streams of a job, and its accounts.

        Raises:
            OSError: the server cannot be reached, or refuses.
        """
        if not self._serves(job):
            return
        client = self._connection.connected_client()
        try:
            if self._issuer is None:
                await delete_streams(client, _names(job).all_streams)
            else:
                accounts = job_accounts(JobKeys.of(job, self._issuer), revision=0)
                # The server would keep the streams of an account that it does not know any more.
                await ask(client, f"$JS.API.ACCOUNT.PURGE.{accounts.streams}", b"")
                await ask(client, "$SYS.REQ.CLAIMS.DELETE", accounts.deletion.encode())
                self._prepared.discard(accounts.streams)
                if self.borders is not None:
                    self.borders.forget(job)
        except (TimeoutError, nats.errors.Error, StreamRefused) as error:
            raise OSError(f"{error!r}") from error
        for said in (self._refusals, self._short):
            said.pop(job.metadata.uid or "", None)

    async def engine_loads(self, job: RLJob) -> dict[str, int]:
        """By pod, the number of trajectories that its engine generates or has queued; empty if it cannot be read."""
        loads = EngineLoads(job.spec)
        if not self._serves(job):
            return {}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self.client(job) as client:
                await loads.read(client, _names(job).signal_stream)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            log.info("the engine loads of %s cannot be read: %r", job.metadata.name, error)
        return loads.by_pod()

    def _serves(self, job: RLJob) -> bool:
        """Whether the operator has access to the job's streams."""
        return self._connection.serves(job) and job.spec.nats.credentials_secret is None

    @asynccontextmanager
    async def client(self, job: RLJob) -> AsyncIterator[Client]:
        """A client in the account of the job's streams.

        Raises:
            OSError: the server cannot be reached.
            nats.errors.Error: it refuses.
        """
        if self._issuer is None:
            yield self._connection.connected_client()
            return
        credentials = RawCredentials(stream_credentials(JobKeys.of(job, self._issuer)))
        async with brief_client(self._connection.url, credentials, self._issuer.trusted) as client:
            yield client


def _names(job: RLJob) -> StreamNames:
    metadata = job.metadata
    return StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")
