"""Reading a worker's Pod manifest: whether the pod runs, how its process ended, why it does not start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rljob_core import worker_protocol
from rljob_core.failures import Failure, Reason, failure_in, words_of
from rljob_core.words import end_in_words, last_words
from rljob_operator import names
from rljob_operator.cluster.node_notices import Toleration
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

# After the grace period a working kubelet kills a pod within seconds.
_OVERDUE = timedelta(seconds=30)
# The scheduler skips a pod while its claims are being bound, and schedules it in its next round.
_SCHEDULING_TIME = timedelta(seconds=6)
_UNSCHEDULABLE = "Unschedulable"
_NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_REVISION = re.compile(r"[0-9a-f]{7,64}")
_NO_MESSAGE = "it gave no message: see its log"
_REASONS = {
    worker_protocol.EXIT_USER_ERROR: Reason.UNKNOWN,
    worker_protocol.EXIT_FENCED: Reason.FENCED,
    worker_protocol.EXIT_UNAVAILABLE: Reason.RESOURCE_MISSING,
}
"""Of processes that have not said more than their exit code."""
_NO_CONTAINER = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


@dataclass(frozen=True, slots=True)
class PodExit:
    """How a worker's process ended: its exit code and its termination message."""

    code: int
    message: str

    @property
    def failure(self) -> Failure | None:
        """Why it ended, as the process says itself, otherwise by its exit code; None if neither explains it."""
        if (said := failure_in(self.message)) is not None:
            return said
        reason = _REASONS.get(self.code)
        return None if reason is None else Failure(reason, self.last_line or _NO_MESSAGE)

    @property
    def fatal(self) -> Failure | None:
        """Why it ended, if that ends the job; else None."""
        return self.failure if self.failure is not None and self.failure.reason.ends_job else None

    @property
    def unavailable(self) -> str | None:
        """What is missing or does not answer, if that is why the process ended; else None."""
        found = self.failure
        unavailable = found is not None and found.reason.exit_code == worker_protocol.EXIT_UNAVAILABLE
        return found.detail if found is not None and unavailable else None

    @property
    def fenced(self) -> bool:
        """Whether the process ended because a newer attempt or writer epoch took over."""
        return self.failure is not None and self.failure.reason is Reason.FENCED

    @property
    def last_line(self) -> str:
        """The line of the message that says why: of a traceback, the exception."""
        return last_words(self.message)

    def __str__(self) -> str:
        return end_in_words(self.code, words_of(self.message) or _NO_MESSAGE)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something does not become ready: a reason in CamelCase, and a message for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """Since when the scheduler has found no node for a pod, and why."""

    since: datetime
    message: str


@dataclass(frozen=True, slots=True)
class PodFetch:
    """The init container that downloads.

    Attributes:
        done: whether it has downloaded all.
        revisions: of what it has downloaded, by name and `uri_digest` of its URI.
    """

    done: bool
    revisions: Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker's pod.

    Attributes:
        exit: the end of its newest process that has ended; a newer process may run.
        ends: how many processes of the container that this was in have ended.
        trouble: why it does not run, as far as Kubernetes reports a reason.
        ready_since: when it was last found ready; None if it is not, or of a local process.
        scheduled: whether it has a node.
        scheduled_at: when it got one; None if it has none, or of a local process.
        node: the name of its node; None if it has none, or of a local process.
        unschedulable: that the scheduler finds no node for it; None if it does, or has not looked yet.
        doubtful_until: until when it is normal that the pod is not scheduled yet; None if it is scheduled, or late.
        lost: whether it is being deleted and its node no longer reports it.
        uid: the uid of the object; None of a local process.
        start_seconds: from its creation until it was last found ready; None if it is not, or of a local process.
        tolerations: of taints of nodes.
        fetch: None of a pod that downloads nothing.
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
    ready_since: datetime | None = None
    scheduled: bool = False
    scheduled_at: datetime | None = None
    node: str | None = None
    unschedulable: Unschedulable | None = None
    doubtful_until: datetime | None = None
    lost: bool = False
    uid: str | None = None
    start_seconds: float | None = None
    tolerations: tuple[Toleration, ...] = ()
    fetch: PodFetch | None = None
    ends: int = 0


def read_pod(manifest: Manifest, now: datetime) -> Pod:
    """Read the manifest of a worker's Pod at the time `now`."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    labels = metadata["labels"]
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    role, (end, ends) = Role(labels[names.LABEL_ROLE]), _end(status, labels[names.LABEL_ROLE])
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
        ready_since=_holds_since(conditions, "Ready"),
        scheduled=_holds(conditions, "PodScheduled"),
        scheduled_at=_holds_since(conditions, "PodScheduled"),
        node=manifest.get("spec", {}).get("nodeName"),
        unschedulable=_unschedulable(conditions),
        doubtful_until=doubtful,
        lost=_lost(metadata, conditions, now),
        uid=metadata.get("uid"),
        start_seconds=_start_seconds(metadata, conditions),
        tolerations=tuple(map(Toleration.read, manifest.get("spec", {}).get("tolerations") or ())),
        fetch=_fetch(manifest.get("spec", {}), status),
        ends=ends,
    )


def _holds(conditions: dict[str, Any], kind: str) -> bool:
    return bool(conditions.get(kind, {}).get("status") == "True")


def _holds_since(conditions: dict[str, Any], kind: str) -> datetime | None:
    since = conditions.get(kind, {}).get("lastTransitionTime")
    return datetime.fromisoformat(since) if since is not None and _holds(conditions, kind) else None


def _start_seconds(metadata: Manifest, conditions: dict[str, Any]) -> float | None:
    created, ready = metadata.get("creationTimestamp"), _holds_since(conditions, "Ready")
    if created is None or ready is None:
        return None
    return max((ready - datetime.fromisoformat(created)).total_seconds(), 0.0)


def _unscheduled_since(conditions: dict[str, Any]) -> datetime | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "False" or "lastTransitionTime" not in scheduled:
        return None
    return datetime.fromisoformat(scheduled["lastTransitionTime"])


def _unschedulable(conditions: dict[str, Any]) -> Unschedulable | None:
    """As `Pod.unschedulable`; for a pod that a gate keeps from the scheduler there may well be a node."""
    since, scheduled = _unscheduled_since(conditions), conditions.get("PodScheduled", {})
    if since is None or scheduled.get("reason", _UNSCHEDULABLE) != _UNSCHEDULABLE:
        return None
    return Unschedulable(since, scheduled.get("message", ""))


def _doubtful_until(conditions: dict[str, Any], now: datetime) -> datetime | None:
    since = _unscheduled_since(conditions)
    until = None if since is None else since + _SCHEDULING_TIME
    return until if until is not None and now < until else None


def _end(status: Manifest, role: str) -> tuple[PodExit | None, int]:
    """How the worker's last process ended, and how many have; before it first starts, how an init container failed."""
    for containers in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(containers, []):
            if containers == "containerStatuses" and container["name"] != role:
                continue
            ends = (container.get(field, {}).get("terminated") for field in ("state", "lastState"))
            end = next((end for end in ends if end is not None), None)
            if end is not None and (containers == "containerStatuses" or end["exitCode"] != 0):
                running = "running" in container.get("state", {})
                ends = container.get("restartCount", 0) + (not running)
                return PodExit(end["exitCode"], end.get("message", "")), ends
    return None, 0


def _fetch(spec: Manifest, status: Manifest) -> PodFetch | None:
    name = worker_protocol.FETCH_MODEL
    if all(container["name"] != name for container in spec.get("initContainers") or ()):
        return None
    found: Manifest = next((c for c in status.get("initContainerStatuses", []) if c["name"] == name), {})
    end = found.get("state", {}).get("terminated", {})
    done = end.get("exitCode") == 0
    return PodFetch(done, _revisions(end.get("message", "")) if done else {})


def _revisions(message: str) -> dict[tuple[str, str], str]:
    """What the container says; nothing if it is no message of ours."""
    if not message.startswith(worker_protocol.FETCHED):
        return {}
    with suppress(ValueError, TypeError):
        rows = json.loads(message.removeprefix(worker_protocol.FETCHED))
        return {
            (str(name), str(uri_digest)): revision
            for name, uri_digest, revision in rows
            if isinstance(revision, str) and _REVISION.fullmatch(revision)
        }
    return {}


def _trouble(status: Manifest, conditions: dict[str, Any], end: PodExit | None) -> Trouble | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Trouble(scheduled.get("reason", _UNSCHEDULABLE), scheduled.get("message", ""))
    for container, waiting in _waiting(status):
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _NO_IMAGE:
            return Trouble("ImagePullFailed", f"{container.get('image', 'its image')}: {message or reason}")
        if reason in _NO_CONTAINER:
            missing = "not found" in message and message.startswith(("secret", "configmap"))
            kind = message.partition(" ")[0].capitalize().replace("Configmap", "ConfigMap")
            return Trouble(f"{kind}NotFound" if missing else reason, message)
    if _holds(conditions, "Ready"):
        return None
    if (scoring := _scoring_trouble(status)) is not None:
        return scoring
    if end is None:
        return None
    if end.unavailable is not None:
        return Trouble("Unavailable", end.unavailable)
    if any(waiting.get("reason") == "CrashLoopBackOff" for _, waiting in _waiting(status)):
        return Trouble("CrashLoopBackOff", str(end))
    return None


def _scoring_trouble(status: Manifest) -> Trouble | None:
    """Why reward functions are not run. What their container says is no worker's word: it never ends the job."""
    for container, waiting in _waiting(status):
        if container["name"] == worker_protocol.SCORER and waiting.get("reason") == "CrashLoopBackOff":
            end = container.get("lastState", {}).get("terminated", {})
            words = end_in_words(end.get("exitCode", 1), end.get("message", "") or _NO_MESSAGE)
            return Trouble("CrashLoopBackOff", f"container {worker_protocol.SCORER}: {words}")
    return None


def _waiting(status: Manifest) -> Iterator[tuple[Manifest, Manifest]]:
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = container.get("state", {}).get("waiting")
        if waiting is not None:
            yield container, waiting


def _lost(metadata: Manifest, conditions: dict[str, Any], now: datetime) -> bool:
    """Whether a pod is being deleted and no kubelet will report its end.

    If a node does not answer for 30 s, its pods are deleted because of its taint. By then the node controller has set
    them to not ready, while the last report of their kubelet says that their containers are ready.
    """
    if "deletionTimestamp" not in metadata:
        return False
    disruption = conditions.get("DisruptionTarget", {})
    by_taint = disruption.get("status") == "True" and disruption.get("reason") == "DeletionByTaintManager"
    not_reported = _holds(conditions, "ContainersReady") and not _holds(conditions, "Ready")
    return (by_taint and not_reported) or now > datetime.fromisoformat(
        metadata["deletionTimestamp"]
    ) + _OVERDUE
