"""Lets kopf see no more of an RLJob than what tells which one it is, and which version of it this is.

kopf parses, copies and compares whole objects, and ends the operator's process over one that is nested too deeply. What
an RLJob says is read by the controller, which is told that there is something to read. So kopf gets a session of which
each list and each event of a watch is read by `cluster.kube.answers`, an object at a time, and narrowed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import aiohttp
import kopf

from rljob_operator.cluster.kube.answers import event_in, lines_of, listed
from rljob_operator.cluster.kube.cache import identity
from rljob_operator.cluster.kube.kinds import KINDS
from rljob_operator.cluster.port import Manifest

_VERSION, _PLURAL = KINDS["RLJob"]
_OK = 200


class KopfSessions:
    """kopf's login handler: the session of each login.

    Args:
        log_in: gives kopf's credentials. If it gives the same again, so does this, by which kopf sees that there are
            no others.
    """

    def __init__(self, log_in: Callable[[], Awaitable[kopf.ConnectionInfo]]) -> None:
        self._log_in = log_in
        self._info: kopf.ConnectionInfo | None = None
        self._given: kopf.AiohttpSession | None = None

    async def __call__(self) -> kopf.AiohttpSession:
        """Log in, and open a session, which kopf closes."""
        info = await self._log_in()
        if self._given is None or info is not self._info:
            self._info, self._given = info, _session(info)
        return self._given


def _session(info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        response_class=_Narrowed,
    )
    return kopf.AiohttpSession(server=info.server, expiration=info.expiration, aiohttp_session=session)


class _Narrowed(aiohttp.ClientResponse):
    """An answer about RLJobs, narrowed; any other answer as it is."""

    async def start(self, connection: Any) -> _Narrowed:
        await super().start(connection)
        if self._is_of_jobs and "watch" in self.url.query:
            self.content = cast("aiohttp.StreamReader", _NarrowedEvents(self.content))
        return self

    async def json(self, **how: Any) -> Any:
        if not self._is_of_jobs:
            return await super().json(**how)
        items, rest = list[Manifest](), Manifest()
        async for manifests, rest in listed(self.content):  # noqa: B007
            items += map(_narrowed, manifests)
        return {**rest, "items": items}

    @property
    def _is_of_jobs(self) -> bool:
        return self.status == _OK and self.url.path.endswith(f"/{_PLURAL}")


class _NarrowedEvents:
    """The stream of a watch, with its objects narrowed."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        async for line in lines_of(self._stream):
            event, found = event_in(line)
            if event != "ERROR":  # of which the object is a Status
                found = _narrowed(found)
            yield json.dumps({"type": event, "object": found}).encode() + b"\n"


def _narrowed(manifest: Manifest) -> Manifest:
    return identity({**manifest, "apiVersion": _VERSION, "kind": "RLJob"})
