"""Logs kopf in to the API server with the same credentials that `KubeApi` uses, and lets it see little of RLJobs.

kopf watches RLJobs over connections of its own. It asks its login handler for credentials when it starts, when those
that it has expire, and when the API server rejects them (401). It gives up, and the operator's process ends, when the
handler answers a rejection with equal credentials.

It parses, copies and compares whole objects, and ends the operator's process over one that is nested too deeply. What
an RLJob says is read by the controller, which is told that there is something to read. So kopf gets a session of which
each list and each event of a watch is read by `cluster.kube.answers`, an object at a time, and narrowed to what tells
which RLJob it is, and which version of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import aiohttp
import kopf

from rljob_operator.cluster.kube.answers import event_in, lines_of, listed
from rljob_operator.cluster.kube.cache import identity
from rljob_operator.cluster.kube.kinds import KINDS
from rljob_operator.cluster.kube.login import KubeLogin, LoginError
from rljob_operator.cluster.port import Manifest

_RETRY_SECONDS = 5.0
_VERSION, _PLURAL = KINDS["RLJob"]
_OK = 200


class KopfLogin:
    """The login handler: a `KubeLogin` as kopf's `ConnectionInfo`.

    Args:
        login: shared with `KubeApi`, so that a plug-in runs once for both.
    """

    def __init__(self, login: KubeLogin) -> None:
        self._login = login
        self._given: kopf.ConnectionInfo | None = None

    async def __call__(self) -> kopf.ConnectionInfo:
        """Give kopf credentials, new ones if it was given some before that have not expired.

        Raises:
            kopf.TemporaryError: there are none; kopf calls again.
            kopf.PermanentError: kopf cannot connect as the kubeconfig says.
        """
        given = self._given
        try:
            info = await self._connection_info()
            if given is not None and _is_valid(given) and _same(info, given):
                # kopf would not ask, had the API server not rejected them.
                await self._login.renew(await self._login.configuration())
                info = await self._connection_info()
                if _same(info, given):
                    return given
        except LoginError as error:
            raise kopf.TemporaryError(str(error), delay=_RETRY_SECONDS) from error
        self._given = info
        return info

    async def _connection_info(self) -> kopf.ConnectionInfo:
        authorization = await self._login.authorization()
        configuration = await self._login.configuration()
        if configuration.tls_server_name:
            raise kopf.PermanentError("the kubeconfig has tls-server-name, which kopf does not support")
        scheme, _, token = (authorization or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            proxy_url=configuration.proxy,
            expiration=self._login.check_at(),
        )


def _is_valid(info: kopf.ConnectionInfo) -> bool:
    return info.expiration is None or datetime.now(UTC) < info.expiration


def _same(one: kopf.ConnectionInfo, other: kopf.ConnectionInfo) -> bool:
    return replace(one, expiration=None) == replace(other, expiration=None)


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
