"""How many pods of a role are ready, as a status counts them over all of the role's Deployments."""

from __future__ import annotations

from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role


def has_environment(observed: Observed) -> bool:
    """Whether the job has environment pods, perhaps none at the moment."""
    return any(deployed.role is Role.ENVIRONMENT for deployed in observed.deployed)


def counts_of(observed: Observed, role: Role) -> str:
    """Pods of a role that are ready, of those wanted: `2/3`."""
    found = [deployed for deployed in observed.deployed if deployed.role is role]
    return f"{sum(d.ready for d in found)}/{sum(d.replicas for d in found)}"
