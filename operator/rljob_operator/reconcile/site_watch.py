"""`SiteWatch` knows the cluster's Sites. It reads and watches them once it is told to.

An operator of single namespaces reads them when a job names one: until then it makes no request about them, and needs
no right to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Set

from pydantic import ValidationError

from rljob_core.spec import Site
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.watch import KindWatch
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.job_sites import KnownSites

log = logging.getLogger(__name__)

_FORBIDDEN, _UNKNOWN = 403, 404
_BACKOFF = Backoff(first=0.5, last=60.0)
_WORDS = {
    _FORBIDDEN: "this operator may not read Sites, which belong to the whole cluster: an administrator lets its "
    "ServiceAccount list and watch sites.rljob.dev",
    _UNKNOWN: "this cluster does not know the kind Site: an administrator applies the CRDs of this release",
}


class SiteWatch:
    """The Sites of a cluster.

    Args:
        api: lists and watches.
        changed: called when a Site comes, goes, or has another spec, and when they become readable or unreadable.
    """

    def __init__(self, api: KubeApi, *, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._manifests: dict[str, Manifest] = {}
        self._sites: dict[str, Site] = {}
        self._faulty: dict[str, str] = {}
        self._unreadable = ""
        self._wanted = asyncio.Event()
        self._read = False
        self._reading = asyncio.Lock()
        self._watch = KindWatch(
            api,
            "Site",
            "",
            selector="",
            seen=self._seen,
            unlisted=self._unlisted,
            failed=self._failed,
            backoff=_BACKOFF,
        )

    @property
    def known(self) -> KnownSites:
        """The Sites as they were read last, and what is wrong with those that this release cannot read."""
        return KnownSites(dict(self._sites), self._unreadable, dict(self._faulty))

    @property
    def are_read(self) -> bool:
        """Whether the Sites have been read, or could not be."""
        return self._read

    def manifests(self) -> dict[str, Manifest]:
        """The Sites as the API server has them, by name."""
        return dict(self._manifests)

    def take(self, manifest: Manifest) -> None:
        """Take in what a write returned."""
        if manifest["metadata"]["name"] in self._manifests:
            self._put(manifest)

    async def read(self) -> None:
        """Read all Sites for the first time, and let `run` follow them; from then on this does nothing.

        Raises:
            ApiError: the API server does not answer.
        """
        async with self._reading:
            if self._read:
                return
            try:
                await self._watch.read(self._put)
            except ApiError as error:
                if error.status not in _WORDS:
                    raise
                self._unreadable = _WORDS[error.status]
            self._read = True
            self._wanted.set()

    async def run(self) -> None:
        """Follow the Sites once they have been read; returns only when cancelled."""
        await self._wanted.wait()
        await self._watch.follow()

    def _put(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        before = self._manifests.get(name)
        self._manifests[name] = manifest
        if before is not None and before["spec"] == manifest["spec"]:
            return  # another status
        self._forget(name)
        try:
            self._sites[name] = _site(manifest)
        except ValidationError as error:
            log.warning("Site %s cannot be read: %s", name, error)
            self._faulty[name] = _first(error)

    def _forget(self, name: str) -> None:
        self._sites.pop(name, None)
        self._faulty.pop(name, None)

    def _seen(self, event: str, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        before = self._manifests.get(name)
        if event == "DELETED":
            self._manifests.pop(name, None)
            self._forget(name)
            self._changed()
            return
        self._put(manifest)
        if before is None or before["spec"] != manifest["spec"]:
            self._changed()

    def _unlisted(self, there: Set[Ref], _version: str) -> Iterable[Manifest]:
        if self._unreadable:
            self._unreadable = ""
            self._changed()
        return [manifest for manifest in self._manifests.values() if Ref.of(manifest) not in there]

    def _failed(self, error: ApiError) -> None:
        if error.status in _WORDS and self._unreadable != _WORDS[error.status]:
            self._unreadable = _WORDS[error.status]
            self._changed()


def _site(manifest: Manifest) -> Site:
    """The Site, without fields that this release does not know.

    Raises:
        ValidationError: it cannot be read.
    """
    shown = {field: manifest[field] for field in ("apiVersion", "kind", "metadata", "spec")}
    return Site.model_validate(shown, extra="ignore", by_alias=True, by_name=False)


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, with its field."""
    one = error.errors()[0]
    return f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
