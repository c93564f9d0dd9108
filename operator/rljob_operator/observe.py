"""Reading a job's children into `Observed`: frozen facts that the pure functions decide by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator import names
from rljob_operator.cluster import Cluster, Manifest, Ref
from rljob_operator.names import Role


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker's process ended, and its last words."""

    code: int
    message: str

    @property
    def user_error(self) -> str | None:
        """What the user has to change, if that ended it."""
        if self.message.startswith(names.USER_ERROR):
            return self.message.removeprefix(names.USER_ERROR)
        if self.code == names.EXIT_USER_ERROR:
            return self.last_line or "it gave no message: see its log"
        return None

    @property
    def fenced(self) -> bool:
        """Whether a newer attempt or writer epoch ended it."""
        return self.code == names.EXIT_FENCED or self.message.startswith(names.FENCED)

    @property
    def last_line(self) -> str:
        """The last line that says anything: of a traceback, the exception."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return lines[-1] if lines else ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker's pod. `exit` is of its newest ended process, which a restart may have followed."""

    name: str
    role: Role
    pool: str | None
    attempt: int | None
    ready: bool
    terminating: bool
    evicted: bool
    exit: Exit | None


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


class GangState(Enum):
    """What became of a trainer attempt."""

    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Gang:
    """The Job of a trainer attempt. `failures` counts attempts before it; `ended` is when it failed or completed."""

    attempt: int
    state: GangState
    failures: int
    config_hash: str
    terminating: bool
    ended: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What the workers report of the job's progress."""

    step: int = 0
    policy_version: int = 0
    reward_mean: float | None = None
    staleness_max: int | None = None
    staleness_mean: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that reconciling decides by.

    Attributes:
        children: all but pods.
        now: with time zone.
        figures: None if there are none yet.
    """

    job: RLJob
    status: RLJobStatus
    children: Mapping[Ref, Manifest]
    pods: tuple[Pod, ...]
    deployed: tuple[Deployed, ...]
    gangs: tuple[Gang, ...]
    now: datetime
    figures: Figures | None = None

    @property
    def pools(self) -> dict[str, Manifest]:
        """RolloutPools by pool name, without those on their way out."""
        return {
            manifest["spec"]["pool"]: manifest
            for ref, manifest in self.children.items()
            if ref.kind == "RolloutPool" and "deletionTimestamp" not in manifest["metadata"]
        }


async def observe(cluster: Cluster, job: RLJob, *, now: datetime, figures: Figures | None) -> Observed:
    """Read the job's status and children."""
    return summarize(job, await cluster.status(job), await cluster.children(job), now=now, figures=figures)


def summarize(
    job: RLJob, status: RLJobStatus, manifests: Sequence[Manifest], *, now: datetime, figures: Figures | None
) -> Observed:
    """PURE. Manifests → facts."""
    children = {Ref.of(manifest): manifest for manifest in manifests if manifest["kind"] != "Pod"}
    of_kind = {kind: [m for r, m in children.items() if r.kind == kind] for kind in ("Deployment", "Job")}
    return Observed(
        job=job,
        status=status,
        children=MappingProxyType(children),
        pods=tuple(_pod(manifest) for manifest in manifests if manifest["kind"] == "Pod"),
        deployed=tuple(_deployed(manifest) for manifest in of_kind["Deployment"]),
        gangs=tuple(_gang(manifest) for manifest in of_kind["Job"]),
        now=now,
        figures=figures,
    )


def _pod(manifest: Manifest) -> Pod:
    labels, status = manifest["metadata"]["labels"], manifest.get("status", {})
    conditions = {c["type"]: c["status"] == "True" for c in status.get("conditions", [])}
    container: Manifest = next(
        (c for c in status.get("containerStatuses", []) if c["name"] == labels[names.LABEL_ROLE]), {}
    )
    ends = [container.get(field, {}).get("terminated") for field in ("state", "lastState")]
    end = next((end for end in ends if end is not None), None)
    attempt = labels.get(names.LABEL_ATTEMPT)
    return Pod(
        name=manifest["metadata"]["name"],
        role=Role(labels[names.LABEL_ROLE]),
        pool=labels.get(names.LABEL_POOL),
        attempt=None if attempt is None else int(attempt),
        ready=conditions.get("Ready", False),
        terminating="deletionTimestamp" in manifest["metadata"],
        evicted=status.get("reason") == "Evicted" or conditions.get("DisruptionTarget", False),
        exit=None if end is None else Exit(end["exitCode"], end.get("message", "")),
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
    )


def _gang(manifest: Manifest) -> Gang:
    metadata = manifest["metadata"]
    state, ended, message = GangState.RUNNING, None, ""
    for condition in manifest.get("status", {}).get("conditions", []):
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
        ended=ended,
        message=message,
    )
