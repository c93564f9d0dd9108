"""PURE. The status of each RolloutPool: counts for `/scale`, and whether its engines serve."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from rljob_core.spec import API_VERSION
from rljob_operator import names
from rljob_operator.cluster import Manifest, Ref
from rljob_operator.names import Role
from rljob_operator.observe import Observed


def pool_statuses(observed: Observed) -> tuple[Manifest, ...]:
    """RolloutPools whose status is not what their Deployment says, with the status that is."""
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
        status["conditions"] = [_ready(observed, name, pool["spec"]["replicas"], status, known)]
        if known != status:
            address = {field: metadata[field] for field in ("name", "namespace")}
            found.append(
                {"apiVersion": API_VERSION, "kind": "RolloutPool", "metadata": address, "status": status}
            )
    return tuple(found)


def _ready(observed: Observed, pool: str, wanted: int, status: Manifest, known: Manifest) -> dict[str, Any]:
    """All engines that are wanted serve; else why not."""
    ready, reason, message = status["readyReplicas"] >= wanted, "EnginesServe", ""
    if not ready:
        reason, message = "EnginesNotReady", f"{status['readyReplicas']} of {wanted} engines serve"
        troubled = next(
            (
                pod
                for pod in observed.pods
                if pod.pool == pool and pod.trouble is not None and not pod.terminating
            ),
            None,
        )
        if troubled is not None and troubled.trouble is not None:
            reason, message = troubled.trouble.reason, f"{troubled.name}: {troubled.trouble.message}"
    value = "True" if ready else "False"
    old: dict[str, Any] = next((c for c in known.get("conditions", []) if c["type"] == "Ready"), {})
    now = observed.now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "type": "Ready",
        "status": value,
        "reason": reason,
        "message": message,
        "observedGeneration": status["observedGeneration"],
        "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == value else now,
    }
