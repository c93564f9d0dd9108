"""`JobsAtSites` knows which jobs have, or had, pools at a site: what engines there have stored may still arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.kube.cluster import job_of
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.job_sites import KnownSites, SiteRefused
from rljob_operator.decisions.joined_streams import StreamsOrder
from rljob_operator.names import MANAGED_BY

_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class OrderedJobs:
    """The jobs of one site.

    Attributes:
        readable: those whose streams are joined.
        kept: orders of those that exist and that this release cannot read: they stay as they are.
    """

    readable: Mapping[JobKey, RLJob]
    kept: Mapping[JobKey, StreamsOrder]


class JobsAtSites:
    """The jobs of all sites.

    Args:
        cache: has the RLJobs that were listed.
        api: says whether there is one that was not.
    """

    def __init__(self, cache: KubeCache, api: KubeApi) -> None:
        self._cache = cache
        self._api = api
        self._jobs: dict[JobKey, tuple[int, RLJob | None]] = {}
        """As they were read last, with the version of what was read; None of one that has ended, or is not ours."""

    async def find(
        self, site: str, known: KnownSites, held: Mapping[JobKey, StreamsOrder], namespaces: Iterable[str]
    ) -> OrderedJobs | None:
        """The jobs of a site; None if one with an order was not listed yet, as after a start of the operator.

        Args:
            site: its name.
            known: the Sites.
            held: the orders that the site has.
            namespaces: whose orders are this operator's.

        Raises:
            ApiError: the API server does not say whether a job exists.
        """
        versions = {(ref.namespace, ref.name): v for ref, v in self._cache.versions("RLJob").items()}
        for key in self._jobs.keys() - versions.keys():
            del self._jobs[key]
        unread: dict[JobKey, Manifest] = {}
        for key, version in versions.items():
            if key in self._jobs and self._jobs[key][0] == version:
                continue
            if (manifest := self._cache.job(key)) is None:
                continue
            try:
                self._jobs[key] = version, _read(manifest)
            except SpecError:
                if not self._remembers(key, manifest):
                    self._jobs.pop(key, None)
                    unread[key] = manifest
        ours = {key: order for key, order in held.items() if key[0] in set(namespaces)}
        for key in ours.keys() - versions.keys():
            if await self._api.find(Ref("RLJob", *key)) is not None:
                return None
        kept = {k: o for k, o in ours.items() if k in unread and unread[k]["metadata"].get("uid") == o.uid}
        return OrderedJobs(self._readable(site, known, held), kept)

    def _remembers(self, key: JobKey, manifest: Manifest) -> bool:
        """Whether an earlier state of a job was read, which counts until it can be read again."""
        job = self._jobs[key][1] if key in self._jobs else None
        metadata = manifest["metadata"]
        return job is not None and job.metadata.uid == metadata.get("uid")

    def _readable(
        self, site: str, known: KnownSites, held: Mapping[JobKey, StreamsOrder]
    ) -> dict[JobKey, RLJob]:
        found = {}
        for key, (_, job) in self._jobs.items():
            if job is None:
                continue
            order = held.get(key)
            ordered = order is not None and order.uid == job.metadata.uid
            if ordered or (site in job.spec.rollout.sites and _is_admitted(job, known)):
                found[key] = job
        return found


def _read(manifest: Manifest) -> RLJob | None:
    """A job that is ours and has not ended.

    Raises:
        SpecError: this release cannot read it.
    """
    if "deletionTimestamp" in manifest["metadata"]:
        return None
    if manifest["spec"].get("managedBy", MANAGED_BY) != MANAGED_BY:
        return None
    conditions = manifest.get("status", {}).get("conditions", [])
    if any(c["type"] in _ENDED and c["status"] == "True" for c in conditions):
        return None
    return job_of(manifest)


def _is_admitted(job: RLJob, known: KnownSites) -> bool:
    try:
        known.check(job)
    except SiteRefused:
        return False
    return True
