"""Objects that isolate and protect a job's pods: ServiceAccount, NetworkPolicy, PodDisruptionBudgets.

| child | why |
|---|---|
| ServiceAccount `<job>-worker` | pods have their own identity, without any rights and without a token |
| NetworkPolicy `<job>-workers` | pods accept ranks of a trainer gang and scrapers, and reach what `egress.py` lists |
| NetworkPolicies `<job>-audit`, `<job>-backup` | pods that audit it, back it up or restore it reach what that lists |
| PodDisruptionBudget `<job>-rollout-<pool>` | a node drain evicts a pool's engines one by one, spot engines at once |
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.spec import RLJobSpec
from rljob_operator import names
from rljob_operator.children.egress import audit_egress, backup_egress, worker_egress
from rljob_operator.children.environment_keys import environment_of
from rljob_operator.children.metadata import child_metadata, policy_manifest
from rljob_operator.children.metrics_port import scrapers
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role


def service_account(metadata: Manifest) -> Manifest:
    """The ServiceAccount of workers: of a job's, or of a site's pool."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def network_policy(job: ResolvedJob) -> Manifest:
    """Refuse connections to workers, which communicate through NATS, except in the trainer's gang and for metrics.

    Workers themselves reach what the job names. That bounds code that a model wrote; who may create NetworkPolicies in
    the namespace can allow more.
    """
    trainer = {"matchLabels": names.identity(job.metadata.name, Role.TRAINER)}
    readers = scrapers(job.defaults.metrics_port, job.defaults.scraper_namespaces)
    return policy_manifest(
        child_metadata(job.job, names.network_policy(job.metadata.name), None),
        {"matchLabels": {names.LABEL_JOB: job.metadata.name}, **_workers_alone(job)},
        ingress=[{"from": [{"podSelector": trainer}]}, *readers],
        egress=worker_egress(job),
    )


def _workers_alone(job: ResolvedJob) -> Manifest:
    """Leaves out the environment pods, which have a policy of their own: what several policies allow adds up."""
    if environment_of(job) is None:
        return {}
    others = {"key": names.LABEL_ROLE, "operator": "NotIn", "values": [Role.ENVIRONMENT.value]}
    return {"matchExpressions": [others]}


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
    selector = {
        "matchLabels": {names.LABEL_INSTANCE: job.metadata.name},
        "matchExpressions": [{"key": names.LABEL_NAME, "operator": "In", "values": pods}],
    }
    return policy_manifest(child_metadata(job.job, name, None), selector, egress=egress)


def disruption_budget(metadata: Manifest, *, job: RLJobSpec, of: str, pool: str, replicas: int) -> Manifest:
    """Evict at most one engine of a pool at a time; an integer, because percentages need a scale subresource.

    Of a pool that is interrupted, any number: a spot machine is gone two minutes after its notice. An engine that may
    not be evicted before another one has started would go with it, instead of handing its work over.

    Args:
        metadata: of the budget.
        job: the job's spec, which has the pool.
        of: name of the job.
        pool: name of the pool.
        replicas: its engines.
    """
    interrupted = any(p.interruptions_per_hour for p in job.rollout.pools if p.name == pool)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {
            "minAvailable": 0 if interrupted else max(replicas - 1, 0),
            "selector": {"matchLabels": names.identity(of, Role.ROLLOUT, pool)},
        },
    }
