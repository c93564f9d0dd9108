"""The Kubernetes API over HTTP: the few verbs that we use, with our errors.

A thin layer over aiohttp (which kopf brings) instead of a generated client: objects stay the dictionaries that all
else works with, and importing it costs nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import randrange
from typing import Any

import aiohttp

from rljob_core.spec import API_VERSION
from rljob_operator.cluster.port import Manifest, Ref

FIELD_MANAGER = "rljob-operator"

KINDS: Mapping[str, tuple[str, str]] = {
    "RLJob": (API_VERSION, "rljobs"),
    "RolloutPool": (API_VERSION, "rolloutpools"),
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Pod": ("v1", "pods"),
    "Event": ("v1", "events"),
    "Deployment": ("apps/v1", "deployments"),
    "Job": ("batch/v1", "jobs"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
}
"""Kind → API version and plural of all that we touch."""

_NO_FIT = ("failed to create typed patch object", "failed to convert new object")
_APPLY = "application/apply-patch+yaml"  # YAML, of which JSON is a part
_MERGE = "application/merge-patch+json"
_PAGE = 250  # objects
_ENDING_SECONDS = 0.1
_SILENT_SECONDS = 150.0  # of a watch: the server sends a bookmark every minute


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the API server is and who we are to it; certificates as paths or as base64 of PEM."""

    server: str
    ca_path: str | None = None
    ca_data: str | None = None
    insecure: bool = False
    token: str | None = None
    certificate_path: str | None = None
    certificate_data: str | None = None
    key_path: str | None = None
    key_data: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list; `version` is the whole list's."""

    manifests: list[Manifest]
    version: str


class ApiError(Exception):
    """The API server refused, or could not be asked (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def invalid(self) -> bool:
        """Whether asking the same again is of no use."""
        # An apply that does not fit the schema is answered with 500.
        return self.status in {400, 422} or (self.status == 500 and self.message.startswith(_NO_FIT))


class KubeApi:
    """A connection to an API server.

    Args:
        login: gives credentials; asked again when a request is unauthorized, as tokens are rotated.
        counted: called after each request with its verb, kind and status (0: no answer).
        timeout: seconds of one request.
    """

    def __init__(
        self,
        login: Callable[[], Credentials],
        *,
        counted: Callable[[str, str, int], None] = lambda *_: None,
        timeout: float = 15.0,
    ) -> None:
        self._login = login
        self._counted = counted
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._server = ""

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
            # Connections whose watch was cancelled end by themselves, in some turns of the loop.
            await asyncio.sleep(_ENDING_SECONDS)

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """Objects of a kind by label selector, of all namespaces if none is named."""
        pages = self.pages(kind, namespace, selector)
        return [manifest async for page in pages for manifest in page.manifests]

    async def pages(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Page]:
        """The same a piece at a time: of thousands of objects only a few hundred are in memory."""
        version = KINDS[kind][0]
        params = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            body = await self._request("GET", kind, _path(kind, namespace), params=params)
            items = [{"apiVersion": version, "kind": kind, **item} for item in body.get("items") or []]
            metadata = body.get("metadata", {})
            yield Page(items, metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return
            params["continue"] = metadata["continue"]

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """What happens after a version, as the event's type and the object, until the server ends it.

        Bookmarks are among them: objects of which only the resource version is there.

        Raises:
            ApiError: it is lost, or (status 410) that version is too long ago.
        """
        params = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            # As client-go does: not all at once.
            "timeoutSeconds": str(randrange(300, 600)),
        }
        session, path = self._connected(), _path(kind, namespace)
        timeout = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=_SILENT_SECONDS)
        try:
            async with session.get(self._server + path, params=params, timeout=timeout) as response:
                if response.status >= 400:
                    answer = await response.json(content_type=None) or {}
                    raise _refusal(response.status, answer)
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code", 0), event["object"])
                    yield event["type"], event["object"]
        except ApiError as error:
            if error.status == 401:
                await self.close()
            raise
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"watch {path}: {_words(error)}") from error

    async def get(self, ref: Ref) -> Manifest | None:
        """The object, None if there is none."""
        return await self._found("GET", ref)

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply; the object as it is then."""
        ref = Ref.of(manifest)
        return await self._request(
            "PATCH",
            ref.kind,
            _path(ref.kind, ref.namespace, ref.name, subresource),
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=manifest,
            content_type=_APPLY,
        )

    async def patch(self, ref: Ref, body: Manifest) -> Manifest | None:
        """JSON merge patch; the object as it is then, None if it is gone."""
        return await self._found("PATCH", ref, body=body, content_type=_MERGE)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        ref = Ref(manifest["kind"], manifest["metadata"]["namespace"], "")
        return await self._request("POST", ref.kind, _path(ref.kind, ref.namespace), body=manifest)

    async def delete(self, ref: Ref, *, grace: int | None = None) -> Manifest | None:
        """Delete an object; what is left of it (terminating), or None if it is gone."""
        body: Manifest = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        left = await self._found("DELETE", ref, body=body)
        return None if left is None or left.get("kind") == "Status" else left

    async def _found(self, verb: str, ref: Ref, **request: Any) -> Manifest | None:
        try:
            return await self._request(verb, ref.kind, _path(ref.kind, ref.namespace, ref.name), **request)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _request(
        self,
        verb: str,
        kind: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        for again in (True, False):
            session = self._connected()
            status = 0
            try:
                async with session.request(
                    verb,
                    self._server + path,
                    params=params,
                    json=body,
                    headers={"Content-Type": content_type} if body is not None else None,
                ) as response:
                    status = response.status
                    answer: Manifest = await response.json(content_type=None) or {}
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise ApiError(status, "Unreachable", f"{verb} {path}: {_words(error)}") from error
            finally:
                self._counted(verb, kind, status)
            if status == 401 and again:
                await self.close()
                continue
            if status >= 400:
                raise _refusal(status, answer)
            return answer
        raise AssertionError

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            credentials = self._login()
            self._server = credentials.server.rstrip("/")
            headers = {} if credentials.token is None else {"Authorization": f"Bearer {credentials.token}"}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=_ssl_context(credentials), limit=64),
                timeout=aiohttp.ClientTimeout(total=self._timeout),
                headers=headers,
            )
        return self._session


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _refusal(status: int, answer: Manifest) -> ApiError:
    return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own reader refuses those of large objects."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts.clear()
        parts.append(rest)


def _path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    version, plural = KINDS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    place = f"namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, [root, place, plural, name, subresource]))


def _ssl_context(credentials: Credentials) -> ssl.SSLContext | bool:
    if not credentials.server.startswith("https"):
        return True
    authority = base64.b64decode(credentials.ca_data).decode() if credentials.ca_data else None
    context = ssl.create_default_context(cafile=credentials.ca_path, cadata=authority)
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = credentials.certificate_path or credentials.certificate_data
    key = credentials.key_path or credentials.key_data
    if certificate and key:
        # The ssl module reads certificates from files alone.
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(
                _file(Path(folder) / "crt", credentials.certificate_path, credentials.certificate_data),
                _file(Path(folder) / "key", credentials.key_path, credentials.key_data),
            )
    return context


def _file(aside: Path, path: str | None, data: str | None) -> str:
    if path is not None:
        return path
    aside.touch(mode=0o600)
    aside.write_bytes(base64.b64decode(data or ""))
    return str(aside)
