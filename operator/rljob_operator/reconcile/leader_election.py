"""Keeps the Lease by which one process of an operator works, while others stand by (`decisions.leadership`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.kinds import KINDS
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.leadership import (
    RETRY_SECONDS,
    Candidate,
    LeaseHolder,
    Spec,
)

log = logging.getLogger(__name__)

LEADER_LABEL = "rljob.dev/leader"
"""Of the pod that works: what only that one serves is found by it."""
CONFLICT, NOT_FOUND = 409, 404
REQUEST_SECONDS = 5.0
"""Seconds that a request about the Lease may take: less than the Lease lasts."""


def clock() -> float:
    """Seconds on a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElection:
    """The candidate of this process.

    Args:
        api: to the API server, of a pool of connections that nothing else fills.
        lease: which Lease.
        identity: of this process.
        changed: called with True when this process begins to lead, with False when it ends to.
    """

    def __init__(
        self,
        api: KubeApi,
        lease: Ref,
        identity: LeaseHolder,
        *,
        changed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._lease = lease
        self._candidate = Candidate(identity)
        self._changed = changed
        self._version = ""

    @property
    def holder(self) -> str:
        """Who has the Lease, as was last seen."""
        return self._candidate.holder

    def leads(self) -> bool:
        """Whether this process may begin a write."""
        return self._candidate.leads(clock())

    def write_seconds(self) -> float:
        """How long a write may take that begins now.

        Raises:
            LeadershipLost: none may begin.
        """
        return self._candidate.write_seconds(clock())

    async def won(self, stop: asyncio.Event) -> bool:
        """Wait until this process leads; False if `stop` was set before."""
        said = None
        while not stop.is_set():
            with _troubles():
                if await self._attempt():
                    with _troubles():
                        async with asyncio.timeout(REQUEST_SECONDS):
                            await self._show_leader()
                    log.info("%s leads", self._candidate.identity)
                    self._changed(True)
                    return True
            if said != self.holder:
                said = self.holder
                log.info("stands by: %s leads", said or "nobody")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
        return False

    async def run(self) -> None:
        """Renew the Lease until cancelled.

        Raises:
            LeadershipLost: another process has it, or the API server was not reached for too long.
        """
        try:
            while True:
                await asyncio.sleep(RETRY_SECONDS)
                with _troubles():
                    await self._renew()
                self._candidate.write_seconds(clock())
        finally:
            self._changed(False)

    async def release(self) -> None:
        """Give the Lease back, after the last write; without an answer, the others wait until it is over."""
        if self.leads():
            self._candidate.lose()
            with _troubles():
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._write(self._candidate.release())

    async def _attempt(self) -> bool:
        """Read the Lease and take it, if that may be; whether this process has it now."""
        async with asyncio.timeout(REQUEST_SECONDS):
            found = await self._api.get(self._lease)
            self._version = "" if found is None else found["metadata"]["resourceVersion"]
            self._candidate.saw(None if found is None else found.get("spec"), clock())
            if not self._candidate.may_take(clock()):
                self._candidate.lose()
                return False
            await self._claim()
            return True

    async def _renew(self) -> None:
        """Write the Lease again; read it first only if somebody else has written it."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._claim()
        except ApiError as error:
            if error.status not in {CONFLICT, NOT_FOUND}:
                raise
            await self._attempt()

    async def _claim(self) -> None:
        sent = clock()
        written = await self._write(self._candidate.claim(datetime.now(UTC)))
        self._candidate.renewed(written["spec"], sent=sent, now=clock())

    async def _write(self, spec: Spec) -> Manifest:
        """Write the Lease, if nobody has since this process last read or wrote it.

        Raises:
            ApiError: somebody has (409), or it could not be written.
        """
        if self._version:
            body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
            written = await self._api.patch(self._lease, body)
            if written is None:
                raise ApiError(NOT_FOUND, "NotFound", "was deleted")
        else:
            metadata = {"name": self._lease.name, "namespace": self._lease.namespace}
            lease = {"apiVersion": KINDS["Lease"][0], "kind": "Lease", "metadata": metadata, "spec": spec}
            written = await self._api.create(lease)
        self._version = written["metadata"]["resourceVersion"]
        return written

    async def _show_leader(self) -> None:
        """Label the pod of this process, and no other: where a Service leads."""
        pod = self._candidate.identity.pod
        if not pod:
            return
        for other in await self._api.list("Pod", self._lease.namespace, f"{LEADER_LABEL}=true"):
            if other["metadata"]["name"] != pod:
                await self._label(other["metadata"]["name"], None)
        await self._label(pod, "true")

    async def _label(self, pod: str, value: str | None) -> None:
        await self._api.patch(
            Ref("Pod", self._lease.namespace, pod), {"metadata": {"labels": {LEADER_LABEL: value}}}
        )


@contextmanager
def _troubles() -> Iterator[None]:
    """Log what went wrong with one attempt: the next may succeed."""
    try:
        yield
    except (ApiError, TimeoutError) as error:
        if not (isinstance(error, ApiError) and error.status == CONFLICT):  # somebody else was first
            log.warning("the operator's Lease: %s", str(error) or "no answer in time")
