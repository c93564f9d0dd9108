"""Reading a job's children into `Observed`: frozen facts that the pure functions decide by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from rljob_core.messages import StepMetrics
from rljob_core.spec import PipelineStatus, RLJob, RLJobStatus
from rljob_operator import names
from rljob_operator.cluster.port import Cluster, Manifest, Ref
from rljob_operator.decisions.pods import Pod, Trouble, read_pod
from rljob_operator.names import Role


@dataclass(frozen=True, slots=True)
class Deployed:
    """Counts of a role's, or a pool's, Deployment."""

    role: Role
    pool: str | None
    replicas: int
    ready: int
    updated: int
    current: bool
    """Whether its controller has seen its newest spec."""
    trouble: Trouble | None = None
    """Why it cannot make its pods."""


class GangState(Enum):
    """What became of a trainer attempt."""

    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Gang:
    """The Job of a trainer attempt.

    Attributes:
        failures: of attempts before it.
        began: when it was started, if that is known.
        ended: when it failed or completed.
    """

    attempt: int
    state: GangState
    failures: int
    config_hash: str
    terminating: bool
    began: datetime | None
    ended: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """What the workers report of the job's progress.

    Attributes:
        trainer_waiting: share of its time, over the last steps, for which the trainer waited for trajectories.
        engines_idle: share of the engines' slots, over the last steps, that had nothing to do.
        pipeline: in force, by the coordinator's word.
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


def pipeline_in_force(line: StepMetrics) -> PipelineStatus | None:
    """PURE. What a coordinator's line says of the pipeline."""
    said = line.pipeline
    if said is None:
        return None
    return PipelineStatus(
        mode=said.mode,
        max_staleness=said.max_staleness,
        inflight=said.inflight,
        from_step=said.step,
        message=line.pipeline_refused,
    )


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that reconciling decides by.

    Attributes:
        children: all but pods.
        now: with time zone.
        metrics: None if there are none yet.
        outage: of what all jobs of this operator need, such as the NATS server.
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

    @property
    def at_work(self) -> bool:
        """Whether anything is left of what goes when the job stops."""
        return bool(self.pods) or any(
            names.LABEL_KEPT not in manifest["metadata"]["labels"] for manifest in self.children.values()
        )

    @property
    def kept(self) -> tuple[Manifest, ...]:
        """Children that stay when the job ends."""
        return tuple(m for m in self.children.values() if names.LABEL_KEPT in m["metadata"]["labels"])

    @property
    def pools(self) -> dict[str, Manifest]:
        """RolloutPools by pool name, without those on their way out."""
        return {
            manifest["spec"]["pool"]: manifest
            for ref, manifest in self.children.items()
            if ref.kind == "RolloutPool" and "deletionTimestamp" not in manifest["metadata"]
        }


async def observe(
    cluster: Cluster,
    job: RLJob,
    *,
    now: datetime,
    metrics: JobMetrics | None = None,
    outage: Trouble | None = None,
) -> Observed:
    """Read the job's status and children."""
    status, children = await cluster.status(job), await cluster.children(job)
    return summarize(job, status, children, now=now, metrics=metrics, outage=outage)


def summarize(
    job: RLJob,
    status: RLJobStatus,
    manifests: Sequence[Manifest],
    *,
    now: datetime,
    metrics: JobMetrics | None = None,
    outage: Trouble | None = None,
) -> Observed:
    """PURE. Manifests → facts."""
    children = {Ref.of(manifest): manifest for manifest in manifests if manifest["kind"] != "Pod"}
    of_kind = {kind: [m for r, m in children.items() if r.kind == kind] for kind in ("Deployment", "Job")}
    return Observed(
        job=job,
        status=status,
        children=MappingProxyType(children),
        pods=tuple(read_pod(manifest, now) for manifest in manifests if _is_worker(manifest)),
        deployed=tuple(_deployed(manifest) for manifest in of_kind["Deployment"]),
        gangs=tuple(_gang(manifest) for manifest in of_kind["Job"]),
        now=now,
        metrics=metrics,
        outage=outage,
    )


def _is_worker(manifest: Manifest) -> bool:
    """A pod of ours: somebody may give a pod of theirs the job's label."""
    return manifest["kind"] == "Pod" and names.LABEL_ROLE in manifest["metadata"]["labels"]


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
        failures=int(metadata["annotations"][names.FAILURES]),
        config_hash=metadata["annotations"][names.CONFIG_HASH],
        terminating="deletionTimestamp" in metadata,
        began=None if began is None else datetime.fromisoformat(began),
        ended=ended,
        message=message,
    )
