"""The status of each RolloutPool: the counts of its `scale` subresource, and whether its engines serve."""

from __future__ import annotations

from rljob_core.spec import API_VERSION, PoolStatus
from rljob_operator import names
from rljob_operator.children.desired import engines
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.conditions import ConditionFacts, object_conditions
from rljob_operator.decisions.observe import ENGINES_NOT_READY, Observed
from rljob_operator.names import Role


def pool_statuses(observed: Observed) -> tuple[Manifest, ...]:
    """The RolloutPools whose status is out of date, with their new status."""
    found = []
    for name, pool in observed.pools.items():
        metadata = pool["metadata"]
        site = observed.site_of(pool)
        known_of_site = observed.site_pools.get(name)
        if site is not None and known_of_site is None:
            continue  # reports have not been read yet: what the status says may be true
        uid = metadata.get("uid", "")
        status: Manifest = _counts(observed, pool) if known_of_site is None else {**known_of_site.counts(uid)}
        selector = names.identity(pool["spec"]["job"], Role.ROLLOUT, name)
        status["selector"] = ",".join(f"{label}={value}" for label, value in sorted(selector.items()))
        wanted = engines(pool)
        if known_of_site is None:
            ready = _ready(observed, name, wanted, status)
        else:
            ready = known_of_site.facts(metadata.get("generation", 0), uid)
        facts = {"Ready": ready, "ScalingLimited": _limited(pool, wanted)}
        known = pool.get("status", {})
        generation = status["observedGeneration"]
        status["conditions"] = object_conditions(known, facts, generation=generation, now=observed.now)
        if known != status:
            address = {field: metadata[field] for field in ("name", "namespace", "uid")}
            found.append(
                {"apiVersion": API_VERSION, "kind": "RolloutPool", "metadata": address, "status": status}
            )
    return tuple(found)


def _counts(observed: Observed, pool: Manifest) -> Manifest:
    """The counts of a pool in this cluster, by its Deployment."""
    metadata = pool["metadata"]
    deployment = observed.children.get(Ref("Deployment", metadata["namespace"], metadata["name"]), {})
    counts = deployment.get("status", {})
    return {
        "observedGeneration": metadata.get("generation", 0),
        "replicas": counts.get("replicas", 0),
        "readyReplicas": counts.get("readyReplicas", 0),
    }


def _ready(observed: Observed, pool: str, wanted: int, status: Manifest) -> ConditionFacts:
    """The condition `Ready`: whether all wanted engines serve, else why not."""
    if status["readyReplicas"] >= wanted:
        return "True", "EnginesServe", ""
    troubles = (
        ("False", pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
        for pod in observed.pods
        if pod.pool == pool and pod.trouble is not None and not pod.terminating
    )
    return next(
        troubles, ("False", ENGINES_NOT_READY, f"{status['readyReplicas']} of {wanted} engines serve")
    )


def _limited(pool: Manifest, engines: int) -> ConditionFacts:
    """The condition `ScalingLimited`: whether the job's bounds limit the size to which the pool was scaled."""
    wanted = pool["spec"]["replicas"]
    if wanted == engines:
        return "False", "WithinBounds", ""
    bound = "minReplicas" if wanted < engines else "maxReplicas"
    message = f"{wanted} engines are wanted; {bound} of the RLJob's pool allows {engines}"
    return "True", "TooFewReplicas" if wanted < engines else "TooManyReplicas", message


def pool_counts(observed: Observed, *, running: bool) -> list[PoolStatus]:
    """The status of each pool; a running job's pool that does not exist yet has the size with which it will start."""
    ready = {d.pool: d.ready for d in observed.deployed if d.pool is not None}
    existing = {name: pool["spec"]["replicas"] for name, pool in observed.pools.items()}
    return [
        PoolStatus(
            name=pool.name,
            replicas=pool.within_bounds(existing.get(pool.name, pool.initial_replicas if running else 0)),
            ready_replicas=ready.get(pool.name, 0),
        )
        for pool in observed.job.spec.rollout.pools
    ]
