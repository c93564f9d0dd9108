"""What the operator of a site wants of one job's pools, and what it reports of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_core.spec.base import API_VERSION, ObjectMeta
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.site_pool import is_scaled_here, site_children, site_pool
from rljob_operator.cluster.port import Manifest, Ref, controller_uid
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import Apply, ClusterAction
from rljob_operator.decisions.pool_status import pool_statuses
from rljob_operator.decisions.site_documents import PoolAddress, PoolDocument, WantedPools
from rljob_operator.decisions.site_reports import EVENTS, PoolReport, ReportedCondition, ReportedEvent

_MESSAGE = 1_024
"""Characters of an event's message."""

JobAddress = tuple[str, str]
"""Namespace and name of an RLJob of the hub."""


@dataclass(frozen=True, slots=True)
class SitePlan:
    """What is wanted of one job's pools.

    Attributes:
        wanted: the manifests.
        problems: by pool, a reason and a message why nothing can be made of it, or no more than there is.
    """

    wanted: tuple[Manifest, ...]
    problems: Mapping[PoolAddress, tuple[str, str]]


def stand_in(address: JobAddress) -> RLJob:
    """What stands for a job of the hub where only its name counts: its RLJob is not in this cluster."""
    metadata = ObjectMeta(namespace=address[0], name=address[1])
    fields: dict[str, Any] = {"api_version": API_VERSION, "kind": "RLJob", "metadata": metadata}
    return RLJob.model_construct(**fields)


def documents_of(wanted: WantedPools, job: JobAddress) -> list[PoolDocument]:
    """The documents of one job's pools."""
    return [d for d in wanted.pools.values() if (d.namespace, d.spec.get("job")) == job]


def jobs_of(wanted: WantedPools) -> set[JobAddress]:
    """The jobs that have pools at the site."""
    return {(d.namespace, str(d.spec.get("job"))) for d in wanted.pools.values()}


def site_plan(
    observed: Observed,
    wanted: WantedPools,
    defaults: ClusterDefaults,
    expires: Callable[[str], int] = lambda _: 0,
) -> SitePlan:
    """The manifests of one job's pools at a site.

    What is observed of a pool that is listed and cannot be read, or rendered, stays as it is. `expires` is as of
    `site_children`.
    """
    metadata = observed.job.metadata
    made: list[Manifest] = []
    problems: dict[PoolAddress, tuple[str, str]] = {}
    for document in documents_of(wanted, (metadata.namespace, metadata.name)):
        ref = Ref("RolloutPool", *document.address)
        if ref in observed.strangers:
            message = f"{ref} exists already, and was not made by this site's operator: delete it, or rename the pool"
            problems[document.address] = "NameTaken", message
            continue
        current = observed.children.get(ref)
        try:
            pool = site_pool(document.manifest, defaults, current)
            made += [pool, *_children(pool, current, defaults, expires)]
        except SpecError as error:
            problems[document.address] = "UnknownRelease", str(error)
            made += _as_it_is(observed, ref)
    for address in wanted.unread:
        made += _as_it_is(observed, Ref("RolloutPool", *address))
    return SitePlan(tuple(made), problems)


def _children(
    pool: Manifest, current: Manifest | None, defaults: ClusterDefaults, expires: Callable[[str], int]
) -> Iterable[Manifest]:
    """The children of a pool that exists; rendered in any case, since a pool of which they cannot be is not made."""
    uid = "" if current is None else current["metadata"]["uid"]
    children = site_children(pool, uid=uid, defaults=defaults, expires=expires)
    return () if current is None or "deletionTimestamp" in current["metadata"] else children


def _as_it_is(observed: Observed, ref: Ref) -> list[Manifest]:
    pool = observed.children.get(ref)
    if pool is None:
        return []
    uid = pool["metadata"]["uid"]
    return [pool, *(m for m in observed.children.values() if controller_uid(m) == uid)]


def reports(
    observed: Observed, documents: Iterable[PoolDocument], problems: Mapping[PoolAddress, tuple[str, str]]
) -> dict[PoolAddress, PoolReport]:
    """What the hub is told of each pool: the status of the site's RolloutPool, or why there is none."""
    newest = {Ref.of(found): found["status"] for found in pool_statuses(observed)}
    told: dict[PoolAddress, PoolReport] = {}
    for document in documents:
        ref = Ref("RolloutPool", *document.address)
        pool = observed.children.get(ref)
        status = newest.get(ref) or (pool or {}).get("status", {})
        conditions = [ReportedCondition.model_validate(c) for c in status.get("conditions", [])]
        generation = _generation(pool)
        if document.address in problems:
            reason, message = problems[document.address]
            failed = ReportedCondition(type="Ready", status="False", reason=reason, message=message)
            conditions = [failed, *(c for c in conditions if c.type != "Ready")]
            generation = document.generation
        told[document.address] = PoolReport(
            uid=document.uid,
            generation=generation,
            replicas=status.get("replicas", 0),
            ready_replicas=status.get("readyReplicas", 0),
            conditions=tuple(conditions),
            wanted=pool["spec"].get("replicas") if pool is not None and is_scaled_here(pool) else None,
            events=_events(observed, str(document.spec.get("pool"))),
        )
    return told


def _events(observed: Observed, pool: str) -> tuple[ReportedEvent, ...]:
    """What keeps pods of a pool from running: each trouble once, with the first pod that has it."""
    found: dict[str, ReportedEvent] = {}
    for pod in sorted(observed.pods, key=lambda pod: pod.name):
        if pod.pool == pool and pod.trouble is not None and not pod.terminating:
            message = f"{pod.name}: {pod.trouble.message}"[:_MESSAGE]
            found.setdefault(pod.trouble.reason, ReportedEvent(reason=pod.trouble.reason, message=message))
    return tuple(found.values())[:EVENTS]


def by_pool(observed: Observed, actions: Iterable[ClusterAction]) -> dict[str, list[ClusterAction]]:
    """Actions by the pool that they are about, so that one that fails keeps no other pool from being made."""
    found: dict[str, list[ClusterAction]] = {}
    pods = {pod.name: pod.pool for pod in observed.pods}
    for action in actions:
        if isinstance(action, Apply):
            pool = action.manifest["metadata"]["labels"].get(names.LABEL_POOL)
        elif action.ref.kind == "Pod":
            pool = pods.get(action.ref.name)
        else:
            pool = observed.children[action.ref]["metadata"]["labels"].get(names.LABEL_POOL)
        found.setdefault(pool or "", []).append(action)
    return found


def _generation(pool: Manifest | None) -> int:
    """The generation of the hub's RolloutPool that the site's was made from; 0 if there is none."""
    text = (pool or {"metadata": {}})["metadata"].get("annotations", {}).get(names.HUB_GENERATION, "")
    return int(text) if text.isdecimal() else 0
