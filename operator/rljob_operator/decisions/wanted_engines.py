"""How many engines RolloutPools should have, read from a job's status for whoever scales them or shows it."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator import names
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role


class NotDecided(Exception):
    """Nothing is decided about a RolloutPool, or not for its autoscaler; the message says why."""


@dataclass(frozen=True, slots=True)
class WantedEngines:
    """What is decided about a pool.

    Attributes:
        external: whether the decision is left to an autoscaler.
    """

    replicas: int
    external: bool


def wanted_engines(job: Manifest) -> dict[str, WantedEngines]:
    """The decisions about a job's pools, by the names of their RolloutPools.

    In a job that has pools of scaling policy Internal, nothing is decided about those of policy External.
    """
    decided = (job.get("status", {}).get("autoscaling") or {}).get("pools", [])
    internal = [pool for pool in decided if pool["policy"] == "Internal"]
    return {
        names.child(job["metadata"]["name"], Role.ROLLOUT, pool["name"]): WantedEngines(
            pool["replicas"], external=not internal
        )
        for pool in internal or decided
    }
