"""`Observed`: what is known of a job and its children at one moment, read from their manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from rljob_core.autoscale import TrainingLoad
from rljob_core.messages import StepMetrics
from rljob_core.spec import PipelineStatus, RLJob, RLJobStatus
from rljob_operator import names
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.ownership import sort_out
from rljob_operator.decisions.pods import Pod, Trouble, read_pod
from rljob_operator.names import Role


@dataclass(frozen=True, slots=True)
class Deployed:
    """The Deployment of a role or of a pool."""

    role: Role
    pool: str | None
    replicas: int
    ready: int
    updated: int
    current: bool
    """Whether the Deployment controller has observed the newest spec."""
    trouble: Trouble | None = None
    """Why it cannot create its pods; None if it can."""


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


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """A job's progress as its workers report it.

    Attributes:
        trainer_waiting: share of its time for which the trainer waited for trajectories, over the last steps.
        engines_idle: share of the engines' slots that had nothing to do, over the last steps.
        pipeline: the pipeline that the coordinator says is in force.
        stream_bytes: that the trajectory stream would have to hold, if the coordinator may not enlarge it itself.
        optimizer_reset: why the optimizer continued with an older or a fresh state; empty if it did not.
        attempt: the trainer's, which may be one before the status's.
        step_attempt: the trainer's that committed the newest step; 0 if none has since this operator started.
        load: how fast the trainer and the engines are.
    """

    step: int = 0
    policy_version: int = 0
    reward_mean: float | None = None
    staleness_max: int | None = None
    staleness_mean: float | None = None
    tokens_per_second: float | None = None
    writer_epoch: int = 0
    trainer_waiting: float | None = None
    engines_idle: float | None = None
    pipeline: PipelineStatus | None = None
    stream_bytes: int = 0
    optimizer_reset: str = ""
    attempt: int = 0
    step_attempt: int = 0
    load: TrainingLoad | None = None


def pipeline_in_force(line: StepMetrics) -> PipelineStatus | None:
    """The pipeline that a line of the coordinator's metrics reports; None if the line has none."""
    reported = line.pipeline
    if reported is None:
        return None
    return PipelineStatus(
        mode=reported.mode,
        max_staleness=reported.max_staleness,
        inflight=reported.inflight,
        from_step=reported.step,
        message=line.pipeline_refused,
    )


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that the decisions about a job depend on.

    Attributes:
        children: manifests of all children except pods.
        strangers: manifests of the objects with the job's label that are not the job's.
        keeps_log: whether the job's pods are those of a cluster, which has their logs while they exist.
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
) -> Observed:
    """What the manifests of the objects with a job's label say; of `controllers`, whose the pods are."""
    owned = sort_out(job, manifests, controllers, now=now)
    children = owned.children
    of_kind = {kind: [m for r, m in children.items() if r.kind == kind] for kind in ("Deployment", "Job")}
    return Observed(
        job=job,
        status=status,
        children=MappingProxyType(children),
        pods=tuple(read_pod(manifest, now) for manifest in owned.pods),
        deployed=tuple(_deployed(manifest) for manifest in of_kind["Deployment"]),
        gangs=tuple(_gang(manifest) for manifest in of_kind["Job"]),
        now=now,
        metrics=metrics,
        outage=outage,
        strangers=MappingProxyType(owned.strangers),
        keeps_log=keeps_log,
    )


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
    )


def _uncreated(nodes: int, status: Manifest) -> int:
    """Pods that a Job lacks though none has ended with a failure or is about to end; it reports its pods' numbers."""
    uncounted = status.get("uncountedTerminatedPods", {})
    ended = status.get("failed") or status.get("terminating") or uncounted.get("failed")
    if ended or "active" not in status:
        return 0
    succeeded = status.get("succeeded", 0) + len(uncounted.get("succeeded", ()))
    return max(nodes - int(status["active"]) - int(succeeded), 0)
