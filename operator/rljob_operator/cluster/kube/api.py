"""`KubeApi`: the requests that the operator makes to a Kubernetes API server, by the official client.

The client (`kubernetes.aio`) gives configuration, authentication, TLS, proxies and the HTTP session. Of its layers
this module uses the lowest, `ApiClient.call_api`: objects stay the plain dictionaries that the rest of the operator
works with, and the operator needs no discovery, because it knows the few kinds that it touches. Errors of the client
and of the network become `ApiError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import randrange
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.rest import RESTResponse

from rljob_operator.cluster.gang_kinds import qualified_kind
from rljob_operator.cluster.kube.answers import event_in, lines_of, listed, parsed, status_in
from rljob_operator.cluster.kube.connections import Connections
from rljob_operator.cluster.kube.errors import ApiError, errors_of, refusal
from rljob_operator.cluster.kube.kinds import KINDS, resource_path
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Manifest, Ref

FIELD_MANAGER = "rljob-operator"

_APPLY = "application/apply-patch+yaml"  # YAML, of which JSON is a part
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_METADATA = (
    f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"  # not every server makes the former
)
_PAGE = 50  # objects: of the largest ones, the server sends 75 MB
_ABSENT = {"resourceVersion": "1"}  # which no object has: the first write to a store makes revision 2
_ENDING_SECONDS = 0.1
_SILENT_SECONDS = 150.0  # of a watch: the server sends a bookmark every minute


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list; `version` is the resource version of the whole list, which the last part has."""

    manifests: list[Manifest]
    version: str


class KubeApi:
    """The requests that the operator makes to one API server, over one pool of connections.

    Args:
        login: gives the configuration. Where the API server rejects its credentials (401), they are renewed and the
            request is repeated once.
        counted: called after each request with its verb, kind and HTTP status (0: there was no answer).
        write_seconds: called right before each write for the seconds that it may take, at most; what it raises, the
            write raises, and is not sent. None if writes are limited by `timeout` alone.
        agent: what the API server's audit log calls this client; it begins with the field manager.
        timeout: seconds that one request may take; a watch is not limited.
    """

    def __init__(
        self,
        login: KubeLogin,
        *,
        counted: Callable[[str, str, int], None] = lambda *_: None,
        write_seconds: Callable[[], float] | None = None,
        agent: str = FIELD_MANAGER,
        timeout: float = 15.0,
    ) -> None:
        self._login = login
        self._write_seconds = write_seconds
        self._agent = agent
        self._counted = counted
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._watch_timeout = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=_SILENT_SECONDS)
        self._client: ApiClient | None = None

    async def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
            # Connections whose watch was cancelled end by themselves, in some turns of the loop.
            await asyncio.sleep(_ENDING_SECONDS)

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """List the objects of a kind that a label selector matches, in one namespace or, with `""`, in all."""
        pages = self.pages(kind, namespace, selector)
        return [manifest async for page in pages for manifest in page.manifests]

    async def pages(self, kind: str, namespace: str, selector: str, *, name: str = "") -> AsyncIterator[Page]:
        """Do the same part by part, so that of thousands of objects only a few are in memory.

        With `name`, only the object of that name is listed.
        """
        version, path = _version_and_kind(kind), resource_path(kind, namespace)
        params = {"labelSelector": selector, "limit": str(_PAGE)}
        if name:
            params["fieldSelector"] = f"metadata.name={name}"
        while True:
            ending: Manifest = {}
            async with self._requested("GET", kind, path, params=params) as answer:
                with errors_of(f"GET {path}"):
                    async for manifests, ending in listed(answer.response.content):  # noqa: B007
                        if manifests:
                            yield Page([{**version, **manifest} for manifest in manifests], "")
            metadata = ending.get("metadata", {})
            yield Page([], metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return
            params["continue"] = metadata["continue"]

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """Follow the changes after a resource version, as event type and object, until the server ends the watch.

        Bookmarks are among the events; their object has nothing but the kind and the resource version.

        Raises:
            ApiError: the connection was lost, or (status 410) the server no longer remembers that version.
        """
        params = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            # As client-go does: not all at once.
            "timeoutSeconds": str(randrange(300, 600)),
        }
        path = resource_path(kind, namespace)
        with errors_of(f"watch {path}"):
            client = await self._connected()
            async with self._answer(
                client, "GET", path, params=params, timeout=self._watch_timeout
            ) as answer:
                if answer.status == 401:
                    await self._login.renew(client.configuration)
                if answer.status >= 400:
                    raise refusal(answer.status, status_in(await answer.read()))
                async for line in lines_of(answer.response.content):
                    event, found = event_in(line)
                    if event == "ERROR":
                        raise refusal(found.get("code", 0), found)
                    yield event, found

    async def get(self, ref: Ref) -> Manifest | None:
        """Read an object; None if there is none."""
        return await self._found("GET", ref)

    async def read(self, ref: Ref) -> Manifest | None:
        """Read an object by a list of its name, as the operator may list jobs and not get them; None if it is gone."""
        found = [
            m async for page in self.pages(ref.kind, ref.namespace, "", name=ref.name) for m in page.manifests
        ]
        return found[0] if found else None

    async def find(self, ref: Ref) -> Manifest | None:
        """Read an object's metadata, by a list of its name: the operator may list and not get. None if it is gone."""
        body = await self._request(
            "GET",
            ref.kind,
            resource_path(ref.kind, ref.namespace),
            params={"fieldSelector": f"metadata.name={ref.name}"},
            accept=_METADATA,
        )
        found = [item["metadata"] for item in body.get("items") or []]
        return {**_version_and_kind(ref.kind), "metadata": found[0]} if found else None

    async def resources(self, version: str) -> frozenset[str]:
        """The resources that the server has of an API group and version; none if it does not know these."""
        known = await self._request("GET", "APIGroupList", "/apis")
        versions = (one["groupVersion"] for group in known["groups"] for one in group["versions"])
        if version not in versions:
            return frozenset()  # asked about it, the server answers with a text
        body = await self._request("GET", "APIResourceList", f"/apis/{version}")
        return frozenset(resource["name"] for resource in body.get("resources") or [])

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        """Server-side apply, as field manager `rljob-operator` and with force; returns the object as stored.

        A `metadata.uid` or `metadata.resourceVersion` of the manifest has to be that of the object (else 409). With
        `dry_run`, everything is checked and nothing is written.
        """
        ref = Ref.of(manifest)
        return await self._request(
            "PATCH",
            ref.kind,
            resource_path(ref.kind, ref.namespace, ref.name, subresource),
            params={
                "fieldManager": FIELD_MANAGER,
                "force": "true",
                **({"dryRun": "All"} if dry_run else {}),
            },
            body=manifest,
            content_type=_APPLY,
        )

    async def patch(self, ref: Ref, body: Manifest, *, subresource: str = "") -> Manifest | None:
        """JSON merge patch; returns the object as stored, None if there is none."""
        return await self._found("PATCH", ref, subresource, body=body, content_type=_MERGE)

    async def apply_new(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object by server-side apply, so that later applies own its fields; 409 if there is one already."""
        new = {**manifest, "metadata": {**manifest["metadata"], **_ABSENT}}
        return await self.apply(new, dry_run=dry_run)

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object; returns it as stored."""
        kind, params = qualified_kind(manifest), {"dryRun": "All"} if dry_run else None
        path = resource_path(kind, manifest["metadata"]["namespace"])
        return await self._request("POST", kind, path, params=params, body=manifest)

    async def delete(self, ref: Ref, uid: str | None = None, *, grace: int | None = None) -> Manifest | None:
        """Delete an object; returns it as it is then (terminating, or as it was last), None if it is gone.

        With `uid`, only the object with that uid is deleted; another one of its name is refused (409).
        """
        body: Manifest = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        left = await self._found("DELETE", ref, body=body)
        return None if left is None or left.get("kind") == "Status" else left

    async def _found(self, verb: str, ref: Ref, subresource: str = "", **request: Any) -> Manifest | None:
        try:
            path = resource_path(ref.kind, ref.namespace, ref.name, subresource)
            return await self._request(verb, ref.kind, path, **request)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _request(self, verb: str, kind: str, path: str, **sent: Any) -> Manifest:
        """Send what `_answer` describes, and return the answer's body."""
        async with self._requested(verb, kind, path, **sent) as answer:
            with errors_of(f"{verb} {path}"):
                return parsed(await answer.read())

    @asynccontextmanager
    async def _requested(self, verb: str, kind: str, path: str, **sent: Any) -> AsyncIterator[RESTResponse]:
        """Send what `_answer` describes, and give the answer, which is no refusal; its body is still to be read."""
        for again in (True, False):
            status = 0
            async with AsyncExitStack() as stack:
                try:
                    with errors_of(f"{verb} {path}"):
                        client = await self._connected()
                        answer = await stack.enter_async_context(self._answer(client, verb, path, **sent))
                        status = answer.status
                        if status == 401 and again:
                            await self._login.renew(client.configuration)
                            continue
                        if status >= 400:
                            raise refusal(status, status_in(await answer.read()))
                finally:
                    self._counted(verb, kind, status)
                yield answer
                return
        raise AssertionError

    @asynccontextmanager
    async def _answer(
        self,
        client: ApiClient,
        verb: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[RESTResponse]:
        """Send a request with the credentials of `client`, and give its answer once the head was read."""
        method, url, headers, _, _ = await client.param_serialize(
            verb,
            path,
            query_params=list((params or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        timeout = timeout or self._timeout
        if verb != "GET" and self._write_seconds is not None:
            allowed = self._write_seconds()
            if timeout.total is None or allowed < timeout.total:
                timeout = aiohttp.ClientTimeout(total=allowed)
        # The body is not given to `param_serialize`, which would copy it, value by value: it is plain JSON already.
        answer = await client.call_api(method, url, headers, body=body, _request_timeout=timeout)
        try:
            yield answer
        finally:
            answer.response.close()  # which returns a connection to the pool, if all of the answer was read

    async def _connected(self) -> ApiClient:
        configuration = await self._login.configuration()
        if self._client is None or self._client.configuration is not configuration:
            old, self._client = self._client, ApiClient(configuration)
            self._client.rest_client = Connections(configuration, self._write_seconds)
            self._client.user_agent = self._agent
            if old is not None:
                # This ends the watches of the old client, too; their readers open new ones.
                await old.close()
        return self._client


def _version_and_kind(kind: str) -> Manifest:
    """These fields of an object, of which `kind` is as in `Ref.kind`."""
    return {"apiVersion": KINDS[kind][0], "kind": kind.partition(".")[0]}
