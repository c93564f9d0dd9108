"""PURE. What a Pod's manifest says: whether it runs, how it ended, what keeps it from running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rljob_core import worker_protocol
from rljob_operator import names
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

# Past its deadline a kubelet that lives kills a pod within seconds.
_OVERDUE = timedelta(seconds=30)
# A scheduler passes over a pod whose claims are just being bound, and takes it with its next look.
_DOUBTFUL = timedelta(seconds=6)
_NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_NO_MESSAGE = "it gave no message: see its log"
_NO_CONTAINER = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


@dataclass(frozen=True, slots=True)
class PodExit:
    """How a worker's process ended, and its last words."""

    code: int
    message: str

    @property
    def user_error(self) -> str | None:
        """What the user has to change, if that ended it."""
        if self.message.startswith(worker_protocol.USER_ERROR):
            return self.message.removeprefix(worker_protocol.USER_ERROR)
        if self.code == worker_protocol.EXIT_USER_ERROR:
            return self.last_line or _NO_MESSAGE
        return None

    @property
    def unavailable(self) -> str | None:
        """What is missing or does not answer, if that ended it."""
        if self.message.startswith(worker_protocol.UNAVAILABLE):
            return self.message.removeprefix(worker_protocol.UNAVAILABLE)
        return (self.last_line or _NO_MESSAGE) if self.code == worker_protocol.EXIT_UNAVAILABLE else None

    @property
    def fenced(self) -> bool:
        """Whether a newer attempt or writer epoch ended it."""
        return self.code == worker_protocol.EXIT_FENCED or self.message.startswith(worker_protocol.FENCED)

    @property
    def last_line(self) -> str:
        """The last line that says anything: of a traceback, the exception."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return lines[-1] if lines else ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something does not get ready: a CamelCase reason, and what a person has to know."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker's pod.

    Attributes:
        exit: of its newest ended process, which a restart may have followed.
        trouble: why it does not run, as far as Kubernetes says.
        doubtful_until: it is not scheduled, but too young for that to be a trouble before then.
        lost: it is to go, and nobody is left on its node to end it.
    """

    name: str
    role: Role
    pool: str | None
    attempt: int | None
    ready: bool
    terminating: bool
    evicted: bool
    exit: PodExit | None
    trouble: Trouble | None = None
    doubtful_until: datetime | None = None
    lost: bool = False


def read_pod(manifest: Manifest, now: datetime) -> Pod:
    """A worker's Pod."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    labels = metadata["labels"]
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    role, end = Role(labels[names.LABEL_ROLE]), _end(status, labels[names.LABEL_ROLE])
    attempt = labels.get(names.LABEL_ATTEMPT)
    doubtful = _doubtful_until(conditions, now)
    return Pod(
        name=metadata["name"],
        role=role,
        pool=labels.get(names.LABEL_POOL),
        attempt=None if attempt is None else int(attempt),
        ready=_holds(conditions, "Ready"),
        terminating="deletionTimestamp" in metadata,
        evicted=status.get("reason") == "Evicted" or _holds(conditions, "DisruptionTarget"),
        exit=end,
        trouble=None if doubtful else _trouble(status, conditions, end),
        doubtful_until=doubtful,
        lost=_lost(metadata, conditions, now),
    )


def _holds(conditions: dict[str, Any], kind: str) -> bool:
    return bool(conditions.get(kind, {}).get("status") == "True")


def _doubtful_until(conditions: dict[str, Any], now: datetime) -> datetime | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "False" or "lastTransitionTime" not in scheduled:
        return None
    until = datetime.fromisoformat(scheduled["lastTransitionTime"]) + _DOUBTFUL
    return until if now < until else None


def _end(status: Manifest, role: str) -> PodExit | None:
    """How the worker's process ended last; of one that has not begun, how the containers before it did."""
    for containers in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(containers, []):
            if containers == "containerStatuses" and container["name"] != role:
                continue
            ends = (container.get(field, {}).get("terminated") for field in ("state", "lastState"))
            end = next((end for end in ends if end is not None), None)
            if end is not None and (containers == "containerStatuses" or end["exitCode"] != 0):
                return PodExit(end["exitCode"], end.get("message", ""))
    return None


def _trouble(status: Manifest, conditions: dict[str, Any], end: PodExit | None) -> Trouble | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Trouble(scheduled.get("reason", "Unschedulable"), scheduled.get("message", ""))
    for container, waiting in _waiting(status):
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _NO_IMAGE:
            return Trouble("ImagePullFailed", f"{container.get('image', 'its image')}: {message or reason}")
        if reason in _NO_CONTAINER:
            missing = "not found" in message and message.startswith(("secret", "configmap"))
            kind = message.partition(" ")[0].capitalize().replace("Configmap", "ConfigMap")
            return Trouble(f"{kind}NotFound" if missing else reason, message)
    if end is None or _holds(conditions, "Ready"):
        return None
    if end.unavailable is not None:
        return Trouble("Unavailable", end.unavailable)
    if any(waiting.get("reason") == "CrashLoopBackOff" for _, waiting in _waiting(status)):
        return Trouble("CrashLoopBackOff", f"exit code {end.code}: {end.last_line or 'no message'}")
    return None


def _waiting(status: Manifest) -> Iterator[tuple[Manifest, Manifest]]:
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = container.get("state", {}).get("waiting")
        if waiting is not None:
            yield container, waiting


def _lost(metadata: Manifest, conditions: dict[str, Any], now: datetime) -> bool:
    """Whether its end was asked for and nobody will report it.

    A node that does not answer for 30 s has its pods deleted for its taint, and by then its own controller says that
    they are not ready while their kubelet's last word was that they were.
    """
    if "deletionTimestamp" not in metadata:
        return False
    disruption = conditions.get("DisruptionTarget", {})
    by_taint = disruption.get("status") == "True" and disruption.get("reason") == "DeletionByTaintManager"
    unheard = _holds(conditions, "ContainersReady") and not _holds(conditions, "Ready")
    return (by_taint and unheard) or now > datetime.fromisoformat(metadata["deletionTimestamp"]) + _OVERDUE
