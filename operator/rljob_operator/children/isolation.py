"""Objects that isolate and protect a job's pods: ServiceAccount, NetworkPolicy, PodDisruptionBudgets.

| child | why |
|---|---|
| ServiceAccount `<job>-worker` | pods have their own identity, without any rights and without a token |
| NetworkPolicy `<job>-workers` | only ranks of the same trainer gang may connect to its pods |
| PodDisruptionBudget `<job>-rollout-<pool>` | a node drain evicts a pool's engines one at a time |
"""

from __future__ import annotations

from rljob_core.spec import PoolSpec, RLJob
from rljob_operator import names
from rljob_operator.children.metadata import child_metadata
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role


def service_account(job: RLJob) -> Manifest:
    """The ServiceAccount of the job's workers."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(job, names.service_account(job.metadata.name), None),
        "automountServiceAccountToken": False,
    }


def network_policy(job: RLJob) -> Manifest:
    """Refuse connections to workers, which communicate through NATS, except between pods of the job's trainer gang.

    Egress is not limited: users decide where NATS, models and object stores are.
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
    """Evict at most one engine of a pool at a time; an integer, because percentages need a scale subresource."""
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
