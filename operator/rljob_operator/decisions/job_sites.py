"""Whether a job's pools may be at the sites that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rljob_core.spec import PoolSpec, RLJob, Site
from rljob_operator.children.cluster_defaults import ClusterDefaults

_HERE = "or leave site out to run the pool in this cluster"
_SHOWN = 10
"""Names in a message."""


class SiteRefused(Exception):
    """A pool cannot be at the site that it names.

    Args:
        reason: CamelCase, of the job's condition.
        field: what is wrong, as a path in the RLJob.
        message: what is wrong, and what to do.
    """

    def __init__(self, reason: str, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class KnownSites:
    """The Sites of the cluster.

    Attributes:
        sites: by name.
        unreadable: why the operator cannot read them; empty if it can.
        faulty: what is wrong with Sites that it cannot read, by name.
    """

    sites: Mapping[str, Site] = field(default_factory=lambda: MappingProxyType({}))
    unreadable: str = ""
    faulty: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def check(self, job: RLJob) -> None:
        """Refuse a job of which a pool cannot be at the site that it names.

        Raises:
            SiteRefused: for the first such pool.
        """
        for path, pool, name in pools_at_sites(job):
            self._check(job, path, pool, name)

    def _check(self, job: RLJob, path: str, pool: PoolSpec, name: str) -> None:
        here = f"{path}.site"
        if self.unreadable:
            raise SiteRefused("SitesUnreadable", here, f"{self.unreadable}; {_HERE}")
        site = self.sites.get(name)
        if site is None and name in self.faulty:
            message = f"this operator cannot read Site {name} ({self.faulty[name]}): correct it, {_HERE}"
            raise SiteRefused("SitesUnreadable", here, message)
        if site is None:
            known = _some(list(self.sites)) or "none"
            message = f"there is no Site {name} (Sites: {known}): create it, name another, {_HERE}"
            raise SiteRefused("UnknownSite", here, message)
        namespace = job.metadata.namespace
        if not site.admits(namespace):
            message = (
                f"Site {name} does not admit RLJobs of namespace {namespace}: add {namespace} to its spec.namespaces, "
                f"name another Site, {_HERE}"
            )
            raise SiteRefused("SiteNotAllowed", here, message)
        if job.spec.nats.url is not None:
            message = f"pool {pool.name} is at Site {name}, which has the operator's server alone: remove url, {_HERE}"
            raise SiteRefused("SiteUnsupported", "spec.nats.url", message)
        if job.spec.nats.credentials_secret is not None:
            message = (
                f"pool {pool.name} is at Site {name}, where the operator makes all credentials: remove "
                f"credentialsSecret, {_HERE}"
            )
            raise SiteRefused("SiteUnsupported", "spec.nats.credentialsSecret", message)
        if job.spec.weights.needs_uri:
            message = (
                f"each engine of pool {pool.name} would read all weights over the link of Site {name}: use transport "
                f"Nats, of which the site gets one copy, {_HERE}"
            )
            raise SiteRefused("SiteUnsupported", "spec.weights.transport", message)
        if lacking := site.lacks(_selected(pool)):
            message = (
                f"no node of Site {name} has the label {_some(_texts(lacking))} (its spec.poolLabels: "
                f"{_some(_texts(site.spec.pool_labels))}): select by these, or add the label there"
            )
            raise SiteRefused("SiteNotAllowed", f"{path}.template.spec.nodeSelector", message)


def with_sites(defaults: ClusterDefaults, sites: Callable[[], KnownSites] | None) -> ClusterDefaults:
    """The cluster's defaults with the links and the grace of its Sites, if it has any."""
    known = {} if sites is None else sites().sites
    links = {name: site.spec.link for name, site in known.items()}
    grace = {name: site.spec.grace_seconds for name, site in known.items()}
    return replace(defaults, links=links, grace=grace) if links else defaults


def pools_at_sites(job: RLJob) -> Iterator[tuple[str, PoolSpec, str]]:
    """The pools that are not at the hub: the path of each, the pool, and the name of its site."""
    for index, pool in enumerate(job.spec.rollout.pools):
        if pool.site is not None:
            yield f"spec.rollout.pools[{index}]", pool, pool.site


def _selected(pool: PoolSpec) -> Mapping[str, str]:
    """The labels of nodes that a pool's template selects by; none if the template is not of the form of one."""
    spec = (pool.template or {}).get("spec")
    labels = spec.get("nodeSelector") if isinstance(spec, dict) else None
    return labels if isinstance(labels, dict) else {}


def _texts(labels: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in labels.items()]


def _some(texts: list[str]) -> str:
    shown = ", ".join(texts[:_SHOWN])
    return f"{shown} and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else shown
