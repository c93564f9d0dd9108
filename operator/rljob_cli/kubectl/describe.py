"""The chain from a job's conditions to their causes, as lines: condition, pool, pod, and what Kubernetes says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import HEALTHY
from rljob_operator.decisions.pods import Pod, read_pod
from rljob_operator.names import LABEL_JOB, LABEL_POOL, LABEL_ROLE, Role

_QUIET = ("Succeeded", "Suspended")
"""Conditions that, if they are true, explain why a job is not ready."""
_EVENTS_SHOWN = 3
_OLD = timedelta(minutes=15)
"""Older events are of troubles that are over, or are repeated."""


def describe(
    job: Manifest,
    pools: Sequence[Manifest],
    pods: Sequence[Manifest],
    events: Sequence[Manifest],
    now: datetime,
) -> Iterator[str]:
    """Lines that say how a job is, and why.

    Args:
        job: the RLJob.
        pools: its RolloutPools.
        pods: its pods.
        events: events of its namespace that warn of something.
        now: time of now.
    """
    status = job.get("status", {})
    name = job["metadata"]["name"]
    state = status.get("state") or "not seen by an operator yet"
    reward = "" if status.get("rewardMean") is None else f", reward {status['rewardMean']:.3f}"
    yield f"{name}: {state}, step {status.get('progress') or '–'}{reward}"
    conditions = status.get("conditions", [])
    if not conditions:
        yield "  no conditions: does an operator run (kubectl -n rljob-system get pods), and is managedBy its own?"
    troubled = [found for found in conditions if _is_trouble(found, conditions)]
    for found in troubled:
        yield f"  {found['type']} is {found['status']}: {found['reason']}{_since(found, now)}"
        if found.get("message"):
            yield f"    {found['message']}"
    events = [event for event in events if now - _time(event) < _OLD]
    calm = {found["type"] for found in conditions if found["status"] == "True"} & set(_QUIET)
    causes = () if calm else tuple(_causes(pools, pods, events, now))
    yield from causes
    if not calm and not any(found["type"] == "Ready" and found["status"] == "True" for found in conditions):
        yield from _events(name, "RLJob", events, indent="  ")
    if not troubled and not causes:
        yield "  nothing is wrong with it"


def _is_trouble(condition: Manifest, conditions: Sequence[Manifest]) -> bool:
    kind, status = condition["type"], condition["status"]
    if kind in _QUIET:
        return bool(kind == "Suspended" and status == "True")
    healthy = HEALTHY.get(kind, False)  # of a newer operator or another program: False
    if healthy and any(c["type"] in _QUIET and c["status"] == "True" for c in conditions):
        return False
    return bool(status != str(healthy))


def _since(condition: Manifest, now: datetime) -> str:
    if "lastTransitionTime" not in condition:
        return ""
    seconds = int((now - datetime.fromisoformat(condition["lastTransitionTime"])).total_seconds())
    return f", for {seconds // 60} min" if seconds >= 120 else f", for {max(seconds, 0)} s"


def _causes(
    pools: Sequence[Manifest], pods: Sequence[Manifest], events: Sequence[Manifest], now: datetime
) -> Iterator[str]:
    """What is wrong with pools and pods."""
    said = {pod["metadata"]["name"]: list(_of_pod(pod, events, now)) for pod in pods}
    for pool in pools:
        spec, status = pool["spec"], pool.get("status", {})
        ready, wanted = status.get("readyReplicas", 0), spec.get("replicas", 0)
        names = [
            p["metadata"]["name"] for p in pods if p["metadata"]["labels"].get(LABEL_POOL) == spec["pool"]
        ]
        below = [line for name in names for line in said.pop(name, [])]
        if below or ready < wanted:
            yield f"  → pool {spec['pool']}: {ready} of {wanted} engines are ready"
            yield from (f"  {line}" for line in below)
            if not below:
                yield from _events(pool["metadata"]["name"], "Deployment", events, indent="    ")
    for lines in said.values():
        yield from lines


def _of_pod(manifest: Manifest, events: Sequence[Manifest], now: datetime) -> Iterator[str]:
    """Why a pod is not ready, or what its process ended of before; nothing if neither."""
    if manifest["metadata"]["labels"].get(LABEL_ROLE) not in set(Role):  # somebody else's
        return
    pod = read_pod(manifest, now)
    cause = _cause(pod, manifest)
    if not cause:
        return
    yield f"  → pod {pod.name} ({pod.role}): {cause}"
    if not pod.ready:
        yield from _events(pod.name, "Pod", events, indent="      ")
        if _restarts(manifest):
            job = manifest["metadata"]["labels"][LABEL_JOB]
            yield f"      its log: kubectl rljob logs {job} --role {pod.role} --previous"


def _cause(pod: Pod, manifest: Manifest) -> str:
    if pod.evicted:
        message = manifest.get("status", {}).get("message")
        return f"evicted: {message}" if message else "evicted"
    if pod.trouble is not None:
        return f"{pod.trouble.reason}: {pod.trouble.message}"
    if pod.exit is not None and pod.exit.code != 0:
        restarts = _restarts(manifest)
        again = f" (restarted {restarts} times)" if restarts else ""
        return f"its process ended: {pod.exit}{again}"
    if pod.unschedulable is not None:
        return f"Unschedulable: {pod.unschedulable.message}"
    if not pod.ready and not pod.terminating and manifest.get("status", {}).get("phase") != "Succeeded":
        waiting = manifest.get("status", {}).get("containerStatuses", [])
        reasons = [
            c["state"]["waiting"].get("reason", "") for c in waiting if "waiting" in c.get("state", {})
        ]
        return f"is starting{f' ({reasons[0]})' if reasons else ''}"
    return ""


def _restarts(manifest: Manifest) -> int:
    return sum(c.get("restartCount", 0) for c in manifest.get("status", {}).get("containerStatuses", []))


def _events(name: str, kind: str, events: Sequence[Manifest], *, indent: str) -> Iterator[str]:
    """The newest warnings about an object."""
    about = [
        e
        for e in events
        if (e["involvedObject"].get("kind"), e["involvedObject"].get("name")) == (kind, name)
    ]
    newest = {event["reason"]: event for event in sorted(about, key=_time)}
    for event in list(newest.values())[-_EVENTS_SHOWN:]:
        count = event.get("count") or 1
        times = f" ({count} times)" if count > 1 else ""
        yield f"{indent}{event['reason']}{times}: {event.get('message', '').strip()}"


def _time(event: dict[str, Any]) -> datetime:
    found = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(found)
