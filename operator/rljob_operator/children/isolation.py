"""PURE. What surrounds a job's pods: identities without rights, who may talk to whom, what a drain must leave.

| child | why |
|---|---|
| ServiceAccount `<job>-worker` | pods have an identity of their own, and no token of it |
| NetworkPolicy `<job>-workers` | nobody connects to a worker but the ranks of its own gang |
| PodDisruptionBudget `<job>-rollout-<pool>` | a drain takes a pool's engines one by one |
"""

from __future__ import annotations

from rljob_core.spec import PoolSpec, RLJob
from rljob_operator import names
from rljob_operator.children.metadata import child_metadata
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role


def service_account(job: RLJob) -> Manifest:
    """The workers' identity."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(job, names.service_account(job.metadata.name), None),
        "automountServiceAccountToken": False,
    }


def network_policy(job: RLJob) -> Manifest:
    """Workers talk through NATS: what connects to one is refused, unless it is of the same job's trainer gang.

    Egress is not limited: where NATS, models and stores are is the user's to say.
    """
    trainer = {"matchLabels": names.identity(job.metadata.name, Role.TRAINER)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(job, names.network_policy(job.metadata.name), None),
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_JOB: job.metadata.name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": trainer}]}],
        },
    }


def disruption_budget(job: RLJob, pool: PoolSpec, replicas: int) -> Manifest:
    """At most one engine of a pool is evicted at a time (an integer, as percentages need a scale to refer to)."""
    role = Role.ROLLOUT
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(job, names.child(job.metadata.name, role, pool.name), role, pool.name),
        "spec": {
            "minAvailable": max(replicas - 1, 0),
            "selector": {"matchLabels": names.identity(job.metadata.name, role, pool.name)},
        },
    }
