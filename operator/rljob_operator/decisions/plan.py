"""The actions that turn the observed objects of a job into the desired ones.

* Objects that differ are applied. Objects that are no longer desired are deleted, one role at a time in the order of
  `Role`, so that a trainer can save its checkpoint while the coordinator still answers it.
* A Secret and the object of a gang are created once and never changed. So is a Job, and only when nothing of another
  attempt is left.
* Each change and each deletion names the uid of the observed object: another object that has taken its name is left
  alone. An object that was not observed is only created.
* Objects that are being deleted are waited for, except pods on lost nodes, whose end nothing would ever report.

Performing the actions of `plan`, again and again until there are none, leads to the desired objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_operator import names
from rljob_operator.children.templates import MERGE_KEYS
from rljob_operator.cluster.gang_kinds import QUALIFIED_GANG_KINDS
from rljob_operator.cluster.port import TOO_LARGE, Manifest, Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role


@dataclass(frozen=True, slots=True)
class Apply:
    """Create or change an object; `reason` says why."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object with that name and uid; `reason` says why."""

    ref: Ref
    uid: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """Remove a pod without waiting for its node, which is lost."""

    ref: Ref
    uid: str | None


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set annotations of a pod, which another controller has created; `reason` says why."""

    ref: Ref
    uid: str | None
    annotations: Mapping[str, str]
    reason: str


ClusterAction = Apply | Delete | ForceDelete | Annotate

_NEVER_CHANGED = {"Job", "Secret", *QUALIFIED_GANG_KINDS}
# Kubernetes rewrites quantities (1000m → 1), so changes of these fields are found by the digest of the manifest alone.
_QUANTITIES = {"limits", "requests", "sizeLimit"}


def plan(observed: Observed, desired: Sequence[Manifest]) -> tuple[ClusterAction, ...]:
    """The next actions."""
    wanted = {Ref.of(manifest): manifest for manifest in desired}
    return (
        *(
            ForceDelete(Ref("Pod", observed.job.metadata.namespace, pod.name), pod.uid)
            for pod in observed.pods
            if pod.lost
        ),
        *_deletions(observed, wanted),
        *_applications(observed, wanted),
    )


def _deletions(observed: Observed, wanted: Mapping[Ref, Manifest]) -> list[Delete]:
    """Deletions of the first role that has undesired objects."""
    unwanted = {ref: _stage(manifest) for ref, manifest in observed.children.items() if ref not in wanted}
    leaving = [*unwanted.values(), *_leaving_pods(observed, wanted)]
    first = min(leaving, default=0)
    return [
        Delete(ref, observed.children[ref]["metadata"].get("uid"), "not wanted")
        for ref, stage in unwanted.items()
        if stage == first and "deletionTimestamp" not in observed.children[ref]["metadata"]
    ]


def _leaving_pods(observed: Observed, wanted: Mapping[Ref, Manifest]) -> list[int]:
    """Stages of the pods whose owner is not desired; they may outlive the owner."""
    owners = {_pod_key(manifest) for ref, manifest in wanted.items() if ref.kind in {"Deployment", "Job"}}
    return [
        list(Role).index(pod.role)
        for pod in observed.pods
        if (pod.role.value, pod.pool, None if pod.attempt is None else str(pod.attempt)) not in owners
    ]


def _applications(observed: Observed, wanted: Mapping[Ref, Manifest]) -> list[Apply]:
    actions = []
    for ref, manifest in wanted.items():
        current = observed.children.get(ref)
        if ref in observed.strangers:
            continue
        if current is None:
            if ref.kind == "Job" and (
                observed.gangs or any(pod.attempt is not None for pod in observed.pods)
            ):
                continue
            actions.append(Apply(manifest, "missing"))
        elif "deletionTimestamp" in current["metadata"] or ref.kind in _NEVER_CHANGED:
            continue
        elif _applied(current) != _applied(manifest):
            actions.append(Apply(_if_still(manifest, current), "changed"))
        elif TOO_LARGE not in current and not _covers(current, manifest):
            actions.append(Apply(_if_still(manifest, current), "altered by others"))
    return actions


def _if_still(manifest: Manifest, current: Manifest) -> Manifest:
    """Let the API server reject the manifest if another object has taken the name of the observed one.

    And a RolloutPool's manifest also if the pool was scaled after its replica count was read.
    """
    fields = ("uid", "resourceVersion") if manifest["kind"] == "RolloutPool" else ("uid",)
    known = {field: current["metadata"][field] for field in fields if field in current["metadata"]}
    return {**manifest, "metadata": {**manifest["metadata"], **known}}


def _stage(manifest: Manifest) -> int:
    role = manifest["metadata"]["labels"].get(names.LABEL_ROLE)
    return list(Role).index(Role(role)) if role in set(Role) else len(Role)


def _pod_key(manifest: Manifest) -> tuple[str | None, str | None, str | None]:
    labels = manifest["metadata"]["labels"]
    return labels.get(names.LABEL_ROLE), labels.get(names.LABEL_POOL), labels.get(names.LABEL_ATTEMPT)


def _applied(manifest: Manifest) -> str | None:
    digest: str | None = manifest["metadata"].get("annotations", {}).get(names.APPLIED_HASH)
    return digest


def _covers(current: Any, wanted: Any, field: str = "") -> bool:
    """Whether `current` has everything of `wanted`; defaults and additions of others do not matter."""
    if isinstance(wanted, dict):
        if not wanted and current is None:
            return True
        return isinstance(current, dict) and all(
            name in _QUANTITIES or _covers(current.get(name), value, name) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        current = current or []
        key = MERGE_KEYS.get(field)
        if key is not None and all(isinstance(element, dict) and key in element for element in wanted):
            by_key = {element.get(key): element for element in current}
            return all(_covers(by_key.get(element[key]), element) for element in wanted)
        return len(current) == len(wanted) and all(map(_covers, current, wanted))
    return bool(current == wanted)
