"""`Observed`: what is known of a job and its children at one moment, read from their manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator import names
from rljob_operator.children.desired import engines
from rljob_operator.children.queue_admission import QueueAdmission
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.node_notices import NodeNotice
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.ownership import sort_out
from rljob_operator.decisions.pods import Pod, Trouble, read_pod
from rljob_operator.decisions.site_reports import SitePool
from rljob_operator.names import Role

ENGINES_NOT_READY = "EnginesNotReady"
"""Reason of a RolloutPool's condition `Ready` for as long as nothing but time is needed."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """The Deployment of a role or of a pool; of a pool at a site, what the site has reported of it."""

    role: Role
    pool: str | None
    replicas: int
    ready: int
    updated: int
    current: bool
    """Whether the Deployment controller has observed the newest spec."""
    trouble: Trouble | None = None
    """Why it cannot create its pods; None if it can."""

    @property
    def settled(self) -> bool:
        """Whether all of its pods are ready, and of the newest spec."""
        return self.current and self.ready == self.updated == self.replicas


class GangState(Enum):
    """The state of a trainer attempt's Job."""

    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Gang:
    """The Job of a trainer attempt.

    Attributes:
        nodes: pods that it wants.
        uncreated: pods of these that it cannot create, unless one has failed.
        failures: number of failed attempts before it.
        config_hash: digest of what the Job was rendered from.
        kind: the kind of object by which its pods are placed together; None if each is placed by itself.
        asked: `trainer.gang` of the job when the Job was made.
        terminating: whether the Job is being deleted.
        began: when it was started, if that is known.
        ended: when it failed or completed.
    """

    attempt: int
    state: GangState
    nodes: int
    uncreated: int
    failures: int
    config_hash: str
    terminating: bool
    began: datetime | None
    ended: datetime | None
    message: str
    kind: GangKind | None = None
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that the decisions about a job depend on.

    Attributes:
        children: manifests of all children except pods.
        strangers: manifests of the objects with the job's label that are not the job's.
        site: the site whose operator observes; None at the hub, which has the RLJob.
        site_pools: what is known of the job's pools that are at sites, by pool; at the hub alone.
        keeps_log: whether the job's pods are those of a cluster, which has their logs while they exist.
        notices: by name, the nodes that are about to be taken away.
        admission: what the queue says that the job waits in; None if it waits in none.
        now: the time of observation, with its time zone.
        metrics: the job's newest metrics; None if there are none yet.
        outage: why something that all jobs need, such as the NATS server, is unavailable; None if it is available.
    """

    job: RLJob
    status: RLJobStatus
    children: Mapping[Ref, Manifest]
    pods: tuple[Pod, ...]
    deployed: tuple[Deployed, ...]
    gangs: tuple[Gang, ...]
    now: datetime
    metrics: JobMetrics | None = None
    outage: Trouble | None = None
    strangers: Mapping[Ref, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    keeps_log: bool = False
    notices: Mapping[str, NodeNotice] = field(default_factory=lambda: MappingProxyType({}))
    site: str | None = None
    site_pools: Mapping[str, SitePool] = field(default_factory=lambda: MappingProxyType({}))
    admission: QueueAdmission | None = None

    def site_of(self, pool: Manifest) -> str | None:
        """The site at which a RolloutPool's engines are; None if they are in this cluster."""
        return _site_of(pool, self.site)

    @property
    def lost_sites(self) -> tuple[str, ...]:
        """Sites of the job's pools that count as lost, or have been away for longer than their grace."""
        found = self.site_pools.values()
        return tuple(sorted({pool.site for pool in found if pool.lost or pool.away is not None}))

    @property
    def has_run(self) -> bool:
        """Whether the job has ever had a trainer or engines."""
        return bool(self.status.trainer_attempt or self.gangs or self.pools)

    @property
    def at_work(self) -> bool:
        """Whether any object exists that has to be deleted when the job stops."""
        return bool(self.pods) or any(
            names.LABEL_KEPT not in manifest["metadata"]["labels"] for manifest in self.children.values()
        )

    @property
    def kept(self) -> tuple[Manifest, ...]:
        """The children that stay when the job ends."""
        return tuple(m for m in self.children.values() if names.LABEL_KEPT in m["metadata"]["labels"])

    @property
    def pools(self) -> dict[str, Manifest]:
        """RolloutPools by pool name, without those that are being deleted."""
        return {
            manifest["spec"]["pool"]: manifest
            for ref, manifest in self.children.items()
            if ref.kind == "RolloutPool" and "deletionTimestamp" not in manifest["metadata"]
        }


def may_be_restored(job: RLJob, trainer_attempt: int) -> bool:
    """Whether a job's streams may be filled from a backup: until it runs for the first time.

    Args:
        job: the job.
        trainer_attempt: of its status.
    """
    return job.spec.suspend and not trainer_attempt


def summarize(
    job: RLJob,
    status: RLJobStatus,
    manifests: Sequence[Manifest],
    controllers: Sequence[Manifest] = (),
    *,
    now: datetime,
    metrics: JobMetrics | None = None,
    outage: Trouble | None = None,
    keeps_log: bool = False,
    site_pools: Mapping[str, SitePool] = MappingProxyType({}),
    site: str | None = None,
    notices: Mapping[str, NodeNotice] = MappingProxyType({}),
    admission: QueueAdmission | None = None,
) -> Observed:
    """What the manifests of the objects with a job's label say; of `controllers`, whose the pods are."""
    owned = sort_out(job, manifests, controllers, now=now, site=site)
    children = owned.children
    kinds = ("Deployment", "Job", "RolloutPool")
    of_kind = {kind: [m for r, m in children.items() if r.kind == kind] for kind in kinds}
    elsewhere = [pool for pool in of_kind["RolloutPool"] if _site_of(pool, site) is not None]
    return Observed(
        job=job,
        status=status,
        children=MappingProxyType(children),
        pods=tuple(read_pod(manifest, now) for manifest in owned.pods),
        deployed=(
            *map(_deployed, of_kind["Deployment"]),
            *(_deployed_at_site(pool, site_pools.get(pool["spec"]["pool"])) for pool in elsewhere),
        ),
        gangs=tuple(_gang(manifest) for manifest in of_kind["Job"]),
        now=now,
        metrics=metrics,
        outage=outage,
        strangers=MappingProxyType(owned.strangers),
        keeps_log=keeps_log,
        site_pools=site_pools,
        site=site,
        notices=notices,
        admission=admission,
    )


def _site_of(pool: Manifest, here: str | None) -> str | None:
    site = names.managing_site(pool.get("spec", {}).get("managedBy"))
    return None if site == here else site


def _deployed(manifest: Manifest) -> Deployed:
    labels, status = manifest["metadata"]["labels"], manifest.get("status", {})
    return Deployed(
        role=Role(labels[names.LABEL_ROLE]),
        pool=labels.get(names.LABEL_POOL),
        replicas=manifest["spec"]["replicas"],
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=status.get("observedGeneration") == manifest["metadata"].get("generation"),
        trouble=next(
            (
                Trouble(condition.get("reason", "ReplicaFailure"), condition.get("message", ""))
                for condition in status.get("conditions", [])
                if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
            ),
            None,
        ),
    )


def _deployed_at_site(pool: Manifest, known: SitePool | None) -> Deployed:
    """The engines of a RolloutPool that the operator of a site runs; before its reports are read, by the status."""
    spec, status = pool["spec"], pool.get("status", {})
    if known is not None:
        status = {**status, **known.counts(pool["metadata"].get("uid", ""))}
    ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), None)
    trouble = None
    if ready is not None and ready["status"] != "True" and ready["reason"] != ENGINES_NOT_READY:
        trouble = Trouble(ready["reason"], f"pool {spec['pool']}: {ready.get('message', '')}")
    return Deployed(
        role=Role.ROLLOUT,
        pool=spec["pool"],
        replicas=engines(pool),
        ready=status.get("readyReplicas", 0),
        updated=status.get("replicas", 0),
        current=status.get("observedGeneration") == pool["metadata"].get("generation"),
        trouble=trouble,
    )


def _gang(manifest: Manifest) -> Gang:
    metadata, status = manifest["metadata"], manifest.get("status", {})
    state, ended, message = GangState.RUNNING, None, ""
    began = status.get("startTime")
    for condition in status.get("conditions", []):
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            state = GangState(condition["type"])
            ended = datetime.fromisoformat(condition["lastTransitionTime"])
            message = condition.get("message", "")
    return Gang(
        attempt=int(metadata["labels"][names.LABEL_ATTEMPT]),
        state=state,
        nodes=manifest["spec"]["completions"],
        uncreated=_uncreated(manifest["spec"]["completions"], status),
        failures=int(metadata["annotations"][names.FAILURES]),
        config_hash=metadata["annotations"][names.CONFIG_HASH],
        terminating="deletionTimestamp" in metadata,
        began=None if began is None else datetime.fromisoformat(began),
        ended=ended,
        message=message,
        kind=GangKind(kind) if (kind := metadata["annotations"].get(names.GANG)) in set(GangKind) else None,
        asked=metadata["annotations"].get(names.GANG_ASKED, ""),
    )


def _uncreated(nodes: int, status: Manifest) -> int:
    """Pods that a Job lacks though none has ended with a failure or is about to end; it reports its pods' numbers."""
    uncounted = status.get("uncountedTerminatedPods", {})
    ended = status.get("failed") or status.get("terminating") or uncounted.get("failed")
    if ended or "active" not in status:
        return 0
    succeeded = status.get("succeeded", 0) + len(uncounted.get("succeeded", ()))
    return max(nodes - int(status["active"]) - int(succeeded), 0)
