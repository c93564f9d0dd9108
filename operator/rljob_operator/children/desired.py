"""The child manifests that should exist for a running RLJob, ready for server-side apply.

| child | name |
|---|---|
| ConfigMap with the `JobConfig` | `<job>-config` |
| Deployment of the coordinator (one, Recreate) and of the reward workers | `<job>-coordinator`, `<job>-reward` |
| RolloutPool per pool, and what it owns: a ConfigMap and a Deployment | `<job>-rollout-<pool>` |
| Secrets with each role's NATS credentials | `<job>-nats-<role>-<hash>` |
| ConfigMap with the tokens of these credentials, which expire | `<job>-nats-tokens` |
| ConfigMap with the Pod that audits the job, which stays when the job ends | `<job>-audit` |
| ServiceAccount, NetworkPolicies, a PodDisruptionBudget per pool | see `isolation.py` |
| headless Service (of several nodes) and Job of the trainer's attempt | `<job>-trainer`, `<job>-trainer-<attempt>` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rljob_core.spec import API_VERSION, PoolSpec, ScalingSpec
from rljob_operator import names
from rljob_operator.children import isolation, limits
from rljob_operator.children.audit_pod import audit_config_map
from rljob_operator.children.metadata import child_metadata, kept, owner_reference, with_digest
from rljob_operator.children.nats_credentials import credentials_secret, tokens_config_map
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.trainer_gang import trainer_job, trainer_service
from rljob_operator.children.worker_pod import Patches, config_map_manifest, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.permissions import Holder

# A new pod starts only after the old one has ended: an engine does not share its accelerator.
_ONE_BY_ONE: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@dataclass(frozen=True, slots=True)
class Targets:
    """What the children depend on besides the resolved job.

    Attributes:
        attempt: number of the trainer attempt whose Job should exist; None if no Job should exist.
        failures: failed attempts before it that count against `backoffLimit`.
        pools: observed RolloutPools by pool name.
        restorable: whether the job's streams may be filled from a backup.
        tokens_expire: second since 1970 at which the roles' NATS tokens expire; None if they last.
        scaled: engines by pool, of the pools that the operator scales.
        nodes: of the attempt's gang; None for all.
    """

    attempt: int | None
    failures: int
    pools: Mapping[str, Manifest]
    restorable: bool = False
    tokens_expire: int | None = None
    scaled: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    nodes: int | None = None


def desired(job: ResolvedJob, targets: Targets) -> tuple[Manifest, ...]:
    """All children of a running job, in the order in which they are created.

    The children of a RolloutPool are included once the pool has been observed, because they refer to its uid.

    Raises:
        SpecError: a pod template patch does not fit, two children would have the same name, or the children would be
            too large.
    """
    limits.check_configuration(job)
    pools: list[Manifest] = []
    owned: list[Manifest] = []
    for pool in job.spec.rollout.pools:
        observed = targets.pools.get(pool.name)
        manifest = rollout_pool(job, pool, observed, scaled=targets.scaled.get(pool.name))
        pools += [manifest, isolation.disruption_budget(job.job, pool, engines(manifest))]
        if observed is not None:
            owned += pool_children(manifest, uid=observed["metadata"]["uid"])
    children = [
        isolation.service_account(job.job),
        isolation.network_policy(job),
        *_secrets(job),
        config_map_manifest(
            child_metadata(job.job, names.config_map(job.metadata.name), None), job.config_text
        ),
        _deployment(job, Role.COORDINATOR, replicas=1),
        _deployment(job, Role.REWARD, replicas=job.spec.reward.replicas),
        *pools,
        *owned,
        *trainer_service(job.job),
    ]
    if targets.attempt is not None:
        nodes = targets.nodes or job.spec.trainer.num_nodes
        children.append(trainer_job(job, targets.attempt, targets.failures, nodes))
    made = (
        *permanent_children(job, targets),
        *(with_digest(child) for child in children),
    )
    limits.check_names(made)
    limits.check_sizes(made)
    return made


def permanent_children(job: ResolvedJob, targets: Targets) -> tuple[Manifest, ...]:
    """The children that do not end with the job's pods, but exist while it is suspended or has ended, too.

    On a cluster these are the audit's ConfigMap, the policies and credentials of the Pods in it, and all tokens; those
    of the restore only while it is possible. A local run is audited, backed up and restored as a folder and needs none.
    """
    if not job.defaults.per_job:
        return ()
    made = (audit_config_map(job), *map(kept, isolation.command_policies(job)))
    audit = tuple(map(with_digest, made))
    if job.issuer is None:
        return audit
    holders = [Holder.READER, *([Holder.RESTORER] if targets.restorable else [])]
    secrets = [with_digest(kept(credentials_secret(job.job, h, job.issuer))) for h in holders]
    everyone = [*map(Holder, Role), *holders]
    tokens = tokens_config_map(job.job, everyone, job.issuer, expires=targets.tokens_expire)
    return (*audit, *secrets, with_digest(tokens))


# ---------------------------------------------------------------------------------------------- rollout pools


def rollout_pool(
    job: ResolvedJob, pool: PoolSpec, observed: Manifest | None, *, scaled: int | None = None
) -> Manifest:
    """The manifest of a RolloutPool; it is self-contained, so that another cluster could run the pool.

    `replicas` follows the RLJob only when the RLJob's own value changes. In between it belongs to the person or the
    autoscaler that scales the pool, even beyond the job's bounds: an operator that corrected it would overwrite the
    autoscaler's value, which the autoscaler would set again, without end. Of scaling policy Internal, the operator is
    the autoscaler: `scaled` is the number that it has decided on.
    """
    index = job.spec.rollout.pools.index(pool)
    name = names.child(job.metadata.name, Role.ROLLOUT, pool.name)
    own = str(pool.initial_replicas) if pool.scaling is None else "scaled"
    replicas = pool.initial_replicas
    if observed is not None and observed["metadata"].get("annotations", {}).get(names.SPEC_REPLICAS) == own:
        replicas = observed["spec"].get("replicas", replicas)
    if scaled is not None:
        replicas = scaled
    patches = Patches(f"spec.rollout.pools[{index}].template", pool.template)
    template = pod_template(job, Role.ROLLOUT, names.config_map(name), patches, pool=pool)
    metadata = child_metadata(job.job, name, Role.ROLLOUT, pool.name)
    return {
        "apiVersion": API_VERSION,
        "kind": "RolloutPool",
        "metadata": {**metadata, "annotations": {names.SPEC_REPLICAS: own}},
        "spec": {
            "job": job.metadata.name,
            "pool": pool.name,
            "replicas": replicas,
            **({} if pool.scaling is None else {"scaling": pool.scaling.model_dump(by_alias=True)}),
            "config": job.config_text,
            "template": template,
        },
    }


def engines(pool: Manifest) -> int:
    """The number of engines that a RolloutPool's manifest asks for, within its scaling bounds."""
    replicas: int = pool["spec"]["replicas"]
    scaling = pool["spec"].get("scaling")
    return replicas if scaling is None else ScalingSpec.model_validate(scaling).bound(replicas)


def pool_children(pool: Manifest, *, uid: str) -> tuple[Manifest, ...]:
    """The children of the RolloutPool with that uid, rendered from the pool's manifest alone."""
    metadata, spec = pool["metadata"], pool["spec"]
    owned = {
        "namespace": metadata["namespace"],
        "labels": metadata["labels"],
        "ownerReferences": [owner_reference("RolloutPool", metadata["name"], uid)],
    }
    return (
        config_map_manifest({**owned, "name": names.config_map(metadata["name"])}, spec["config"]),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**owned, "name": metadata["name"]},
            "spec": {
                "replicas": engines(pool),
                "selector": {"matchLabels": names.identity(spec["job"], Role.ROLLOUT, spec["pool"])},
                "strategy": _ONE_BY_ONE,
                "template": spec["template"],
            },
        },
    )


# ---------------------------------------------------------------------------------------------- the rest


def _secrets(job: ResolvedJob) -> list[Manifest]:
    """The Secrets with each role's NATS credentials; none if the operator issues no credentials for this job."""
    if job.issuer is None:
        return []
    return [credentials_secret(job.job, Holder(role), job.issuer) for role in Role]


def _deployment(job: ResolvedJob, role: Role, *, replicas: int) -> Manifest:
    patch = job.spec.coordinator.template if role is Role.COORDINATOR else job.spec.reward.template
    patches = Patches(f"spec.{role}.template", patch)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(job.job, names.child(job.metadata.name, role), role),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": names.identity(job.metadata.name, role)},
            # Of two coordinators at once, one would only fence the other.
            "strategy": {"type": "Recreate"} if role is Role.COORDINATOR else _ONE_BY_ONE,
            "template": pod_template(job, role, names.config_map(job.metadata.name), patches),
        },
    }
