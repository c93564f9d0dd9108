"""`HubBorders` gives the hub's server the accounts between it and sites, where it asks for credentials.

A job's account imports from the border of each site that the job names, and the border from the account of each job
that has its streams. The server takes tokens in any order, but looks for an account that it does not have for seconds.
So a border exists before any job's account that names it, and lets a job through only once the job has streams.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
from nats.aio.client import RawCredentials

from rljob_core.site_streams import SiteStreams
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames
from rljob_operator.cluster.kube.cache import JobKey
from rljob_operator.decisions.job_sites import KnownSites
from rljob_operator.decisions.site_buckets import SiteBucketNames, stream_of
from rljob_operator.nats.credentials import STREAMS, Issuer, JobKeys
from rljob_operator.nats.crossings import Crossing, job_crossing, talk_crossing
from rljob_operator.nats.site_accounts import SiteAccounts, too_many_jobs
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.server_storage import server_storage
from rljob_operator.reconcile.stream_requests import give_account, revision_by_time

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Given:
    """What the server was given, over which of the operator's connections."""

    connection: int
    domain: str
    through: tuple[tuple[str, Crossing], ...] | None


class HubBorders:
    """The borders of all sites.

    Args:
        connection: to the hub's server, as a user who may create accounts.
        issuer: what accounts and credentials are made from.

    Attributes:
        sites: returns the Sites.
        changed: called with each job that `sites_of` has another result for, though neither it nor a Site has changed.
    """

    def __init__(self, connection: NatsConnection, issuer: Issuer) -> None:
        self._connection = connection
        self._issuer = issuer
        self.sites: Callable[[], KnownSites] = KnownSites
        self.changed: Callable[[JobKey], None] = lambda _: None
        self._given: dict[str, _Given] = {}
        self._jobs: dict[str, frozenset[str]] = {}
        """By site, the UIDs of the jobs that it has streams of."""
        self._left_out: dict[str, frozenset[str]] = {}
        """By site, the accounts of the jobs for which there is no room in the token of its border."""
        self._limit = 0
        """Bytes that a token may have."""
        self._revisions: dict[str, tuple[object, int]] = {}
        """By UID, what a job's newest tokens were made of, and their revision."""
        self._talks: dict[str, tuple[NatsConnection, asyncio.Task[None]]] = {}

    def sites_of(self, job: RLJob) -> tuple[tuple[str, str], ...]:
        """The sites that a job names and may use, or has streams at, each with the domain of its server.

        What engines have stored at a site still arrives after the job's last pool there was removed.
        """
        known, named = self.sites().sites, list(job.spec.rollout.sites)
        named += [site for site, jobs in self._jobs.items() if job.metadata.uid in jobs and site not in named]
        found = [(name, known[name]) for name in named if name in known]
        return tuple((name, site.domain) for name, site in found if site.admits(job.metadata.namespace))

    def revision(self, job: RLJob, before: int, crossings: Sequence[tuple[str, Crossing]]) -> int:
        """The revision of a job's tokens, which grows whenever they say something else.

        Args:
            job: it has its UID.
            before: revision of what the tokens of a job without sites say.
            crossings: see `crossings`.
        """
        uid, said = job.metadata.uid or "", (before, tuple(crossings))
        held = self._revisions.get(uid)
        if held is None and not crossings and not job.spec.rollout.sites:
            return before
        if held is None or held[0] != said:
            held = self._revisions[uid] = (
                said,
                max(before + revision_by_time(), 0 if held is None else held[1] + 1),
            )
        return held[1]

    def forget(self, job: RLJob) -> None:
        """The job has no tokens any more."""
        self._revisions.pop(job.metadata.uid or "", None)

    async def crossings(self, job: RLJob) -> list[tuple[str, Crossing]]:
        """What crosses which border of a job; the borders exist.

        Raises:
            StreamRefused, TimeoutError, OSError, nats.errors.Error: the server does not take one.
        """
        found = []
        for site, domain in self.sites_of(job):
            await self.ensure(site, domain)
            found.append((SiteAccounts(self._issuer, site).border, _crossing(job, site, domain)))
        return found

    async def ensure(self, site: str, domain: str) -> None:
        """Let a site have a border and an account through which operators talk.

        Raises: see `crossings`.
        """
        system, number = self._connection.connected_client(), self._connection.connections
        given = self._given.get(site)
        if given is not None and (given.connection, given.domain) == (number, domain):
            return
        accounts = SiteAccounts(self._issuer, site, domain=domain)
        talk = accounts.talk_token(_talk(site, domain), revision=revision_by_time())
        through = None if given is None else given.through
        if through is None and not (await server_storage(system)).has(accounts.talk):
            # Nobody has talked through it, so no job has been let through.
            await give_account(system, accounts.border_token((), revision=revision_by_time()))
            through = ()
        await give_account(system, talk)
        if through is not None:
            await self._give(site, domain, through)
        # Else the border is as the process before this one left it, until it is known which jobs are let through.
        self._given[site] = _Given(number, domain, None if through == () else through)

    async def let_through(self, site: str, domain: str, jobs: Sequence[RLJob]) -> None:
        """Let the streams of these jobs cross, and no others; each has its account.

        Raises: see `crossings`.
        """
        before = self._jobs.get(site, frozenset())
        # Those that cross go first.
        jobs = sorted(jobs, key=lambda job: job.metadata.uid not in before or self._is_left_out(job, site))
        self._jobs[site] = frozenset(job.metadata.uid or "" for job in jobs)
        for job in jobs:
            if job.metadata.uid not in before and site not in job.spec.rollout.sites:
                self.changed((job.metadata.namespace, job.metadata.name))
        through = tuple(
            (JobKeys.of(job, self._issuer).account(STREAMS), _crossing(job, site, domain)) for job in jobs
        )
        if self._given.get(site) != _Given(self._connection.connections, domain, through):
            left_out = self._left_out.get(site, frozenset())
            await self._give(site, domain, through)
            if self._left_out[site] != left_out:
                for job in jobs:
                    self.changed((job.metadata.namespace, job.metadata.name))

    def trouble(self, job: RLJob, site: str) -> tuple[str, str] | None:
        """Reason and message why a job's streams do not cross a site's border, if there are too many jobs."""
        if not self._is_left_out(job, site):
            return None
        return "StreamsRefused", too_many_jobs(site, self._limit)

    def _is_left_out(self, job: RLJob, site: str) -> bool:
        left = self._left_out.get(site)
        return bool(left) and JobKeys.of(job, self._issuer).account(STREAMS) in (left or ())

    async def close(self, site: str, domain: str) -> None:
        """Let no job's streams cross.

        Raises: see `crossings`.
        """
        await self.ensure(site, domain)
        await self.let_through(site, domain, ())

    async def _give(self, site: str, domain: str, through: tuple[tuple[str, Crossing], ...]) -> None:
        system, number = self._connection.connected_client(), self._connection.connections
        accounts = SiteAccounts(self._issuer, site, domain=domain)
        revision, talk = revision_by_time(), (accounts.talk, _talk(site, domain))

        def token(number: int) -> str:
            return accounts.border_token([talk, *through[:number]], revision=revision)

        fitting, self._limit = len(through), system.max_payload
        if len(token(fitting)) > self._limit:
            numbers = range(len(through))
            fitting = max(bisect_left(numbers, True, key=lambda n: len(token(n)) > self._limit) - 1, 0)
            log.warning("%s", too_many_jobs(site, self._limit))
        await give_account(system, token(fitting))
        self._left_out[site] = frozenset(account for account, _ in through[fitting:])
        self._given[site] = _Given(number, domain, through)

    def talk(self, site: str, subject: str, handle: Callable[[str, bytes], None]) -> NatsConnection:
        """The connection through which the operator talks with a site's, which calls `handle` for a subject."""
        if site not in self._talks:
            credentials = RawCredentials(SiteAccounts(self._issuer, site).talk_credentials())
            made = NatsConnection(
                self._connection.url, credentials=credentials, authority=self._issuer.trusted
            )
            made.subscribe(subject, handle)
            self._talks[site] = made, asyncio.create_task(made.run())
        return self._talks[site][0]

    async def aclose(self) -> None:
        """End these connections."""
        for _, task in self._talks.values():
            task.cancel()
            with suppress(asyncio.CancelledError, nats.errors.Error):
                await task
        self._talks.clear()


def _crossing(job: RLJob, site: str, domain: str) -> Crossing:
    metadata = job.metadata
    names = StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")
    return job_crossing(SiteStreams(names, site, 1, weights=not job.spec.weights.needs_uri, domain=domain))


def _talk(site: str, domain: str) -> Crossing:
    names = SiteBucketNames(site, domain)
    return talk_crossing(site, domain, up=stream_of(names.reports), down=stream_of(names.pools))
