"""Objects that isolate and protect a job's pods: ServiceAccount, NetworkPolicy, PodDisruptionBudgets.

| child | why |
|---|---|
| ServiceAccount `<job>-worker` | pods have their own identity, without any rights and without a token |
| NetworkPolicy `<job>-workers` | its pods accept ranks of a trainer gang, and reach what `egress.py` lists |
| NetworkPolicies `<job>-audit`, `<job>-backup` | pods that audit it, back it up or restore it reach what that lists |
| PodDisruptionBudget `<job>-rollout-<pool>` | a node drain evicts a pool's engines one at a time |
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.spec import PoolSpec, RLJob
from rljob_operator import names
from rljob_operator.children.egress import audit_egress, backup_egress, worker_egress
from rljob_operator.children.metadata import child_metadata
from rljob_operator.children.resolved_job import ResolvedJob
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


def network_policy(job: ResolvedJob) -> Manifest:
    """Refuse connections to workers, which communicate through NATS, except between pods of the job's trainer gang.

    Workers themselves reach what the job names. That bounds code that a model wrote; who may create NetworkPolicies in
    the namespace can allow more.
    """
    trainer = {"matchLabels": names.identity(job.metadata.name, Role.TRAINER)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(job.job, names.network_policy(job.metadata.name), None),
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_JOB: job.metadata.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": trainer}]}],
            "egress": worker_egress(job),
        },
    }


def command_policies(job: ResolvedJob) -> tuple[Manifest, ...]:
    """The policies of the pods that a user creates from the job's audit ConfigMap; nobody connects to these pods."""
    name = job.metadata.name
    return (
        _command_policy(job, names.audit(name), ["audit"], audit_egress(job)),
        _command_policy(job, names.backup(name), ["backup", "restore"], backup_egress(job)),
    )


def _command_policy(
    job: ResolvedJob, name: str, commands: Sequence[str], egress: Sequence[Manifest]
) -> Manifest:
    pods = [names.command_labels(job.metadata.name, command)[names.LABEL_NAME] for command in commands]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(job.job, name, None),
        "spec": {
            "podSelector": {
                "matchLabels": {names.LABEL_INSTANCE: job.metadata.name},
                "matchExpressions": [{"key": names.LABEL_NAME, "operator": "In", "values": pods}],
            },
            "policyTypes": ["Ingress", "Egress"],
            "egress": list(egress),
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
