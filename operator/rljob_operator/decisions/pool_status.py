"""The status of each RolloutPool: the counts of its `scale` subresource, and whether its engines serve."""

from __future__ import annotations

from datetime import UTC, datetime

from rljob_core.spec import API_VERSION
from rljob_operator import names
from rljob_operator.children.desired import engines
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role


def pool_statuses(observed: Observed) -> tuple[Manifest, ...]:
    """The RolloutPools whose status is out of date, with their new status."""
    found = []
    for name, pool in observed.pools.items():
        metadata = pool["metadata"]
        deployment = observed.children.get(Ref("Deployment", metadata["namespace"], metadata["name"]), {})
        counts = deployment.get("status", {})
        selector = names.identity(pool["spec"]["job"], Role.ROLLOUT, name)
        known = pool.get("status", {})
        status = {
            "observedGeneration": metadata.get("generation", 0),
            "replicas": counts.get("replicas", 0),
            "readyReplicas": counts.get("readyReplicas", 0),
            "selector": ",".join(f"{label}={value}" for label, value in sorted(selector.items())),
        }
        wanted = engines(pool)
        facts = {"Ready": _ready(observed, name, wanted, status), "ScalingLimited": _limited(pool, wanted)}
        status["conditions"] = [
            {
                "type": kind,
                "status": str(holds),
                "reason": reason,
                "message": message,
                "observedGeneration": status["observedGeneration"],
                "lastTransitionTime": _since(known, kind, str(holds)) or _text(observed.now),
            }
            for kind, (holds, reason, message) in facts.items()
        ]
        if known != status:
            address = {field: metadata[field] for field in ("name", "namespace", "uid")}
            found.append(
                {"apiVersion": API_VERSION, "kind": "RolloutPool", "metadata": address, "status": status}
            )
    return tuple(found)


_Facts = tuple[bool, str, str]
"""Whether a condition is true, its reason and its message."""


def _ready(observed: Observed, pool: str, wanted: int, status: Manifest) -> _Facts:
    """The condition `Ready`: whether all wanted engines serve, else why not."""
    if status["readyReplicas"] >= wanted:
        return True, "EnginesServe", ""
    troubles = (
        (False, pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
        for pod in observed.pods
        if pod.pool == pool and pod.trouble is not None and not pod.terminating
    )
    return next(troubles, (False, "EnginesNotReady", f"{status['readyReplicas']} of {wanted} engines serve"))


def _limited(pool: Manifest, engines: int) -> _Facts:
    """The condition `ScalingLimited`: whether the job's bounds limit the size to which the pool was scaled."""
    wanted = pool["spec"]["replicas"]
    if wanted == engines:
        return False, "WithinBounds", ""
    bound = "minReplicas" if wanted < engines else "maxReplicas"
    message = f"{wanted} engines are wanted; {bound} of the RLJob's pool allows {engines}"
    return True, "TooFewReplicas" if wanted < engines else "TooManyReplicas", message


def _since(known: Manifest, kind: str, status: str) -> str | None:
    """When the condition got its present status; None if it has just changed."""
    same = (c for c in known.get("conditions", []) if (c["type"], c["status"]) == (kind, status))
    return next((str(condition["lastTransitionTime"]) for condition in same), None)


def _text(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
