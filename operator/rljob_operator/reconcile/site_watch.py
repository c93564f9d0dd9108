"""`SiteWatch` knows the cluster's Sites. It reads and watches them once it is told to.

An operator of single namespaces reads them when a job names one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from rljob_core.spec import Site
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.watch import OptionalWatch
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.job_sites import KnownSites

log = logging.getLogger(__name__)

_FORBIDDEN, _UNKNOWN = 403, 404
_BACKOFF = Backoff(first=0.5, last=60.0)
_WORDS = {
    _FORBIDDEN: "this operator may not read Sites, which belong to the whole cluster: an administrator lets its "
    "ServiceAccount list and watch sites.rljob.dev",
    _UNKNOWN: "this cluster does not know the kind Site: an administrator applies the CRDs of this release",
}


class SiteWatch(OptionalWatch):
    """The Sites of a cluster.

    Args:
        api: lists and watches.
        changed: called when a Site comes, goes, or has another spec, and when they become readable or unreadable.
    """

    def __init__(self, api: KubeApi, *, changed: Callable[[], None]) -> None:
        super().__init__(api, "Site", [""], selector="", words=_WORDS, readable=changed, backoff=_BACKOFF)
        self._changed = changed
        self._manifests: dict[str, Manifest] = {}
        self._sites: dict[str, Site] = {}
        self._faulty: dict[str, str] = {}

    @property
    def known(self) -> KnownSites:
        """The Sites as they were read last, and what is wrong with those that this release cannot read."""
        return KnownSites(dict(self._sites), self.unreadable, dict(self._faulty))

    def manifests(self) -> dict[str, Manifest]:
        """The Sites as the API server has them, by name."""
        return dict(self._manifests)

    def take(self, manifest: Manifest) -> None:
        """Take in what a write returned."""
        if manifest["metadata"]["name"] in self._manifests:
            self.put(manifest)

    def put(self, manifest: Manifest) -> None:
        """Take in a Site; of one that this release cannot read, what is wrong with it."""
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
        self.put(manifest)
        if before is None or before["spec"] != manifest["spec"]:
            self._changed()

    def _known(self) -> Iterable[Manifest]:
        return list(self._manifests.values())


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
