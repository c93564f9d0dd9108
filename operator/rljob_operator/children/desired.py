"""PURE. What should exist for an RLJob: its spec and a few targets → child manifests, ready for server-side apply.

| child | name |
|---|---|
| ConfigMap with the `JobConfig` | `<job>-config` |
| Deployment of the coordinator (one, Recreate) and of the reward workers | `<job>-coordinator`, `<job>-reward` |
| RolloutPool per pool, and what it owns: a ConfigMap and a Deployment | `<job>-rollout-<pool>` |
| Secrets with each role's NATS credentials | `<job>-nats-<role>-<hash>` |
| ConfigMap with the Pod that audits the job, which stays when the job ends | `<job>-audit` |
| ServiceAccount, NetworkPolicy, a PodDisruptionBudget per pool | see `guards.py` |
| headless Service (of several nodes) and Job of the trainer's attempt | `<job>-trainer`, `<job>-trainer-<attempt>` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_core.spec import API_VERSION, PoolSpec, RLJob, ScalingSpec
from rljob_operator import names
from rljob_operator.children import isolation as guards
from rljob_operator.children.audit_pod import audit_config_map
from rljob_operator.children.cluster_defaults import ClusterDefaults, config_text, issuer_for
from rljob_operator.children.metadata import child_metadata, digest, owner_reference
from rljob_operator.children.trainer_gang import trainer_job, trainer_service
from rljob_operator.children.worker_pod import Patches, config_map_manifest, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.credentials import credentials_secret
from rljob_operator.nats.permissions import Holder

# Another pod only once the old one is gone: an engine needs its accelerator for itself.
_ONE_BY_ONE: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@dataclass(frozen=True, slots=True)
class Targets:
    """What observation adds to the spec.

    Attributes:
        attempt: of the trainer whose Job should exist; None for none.
        failures: attempts before it that count.
        pools: observed RolloutPools by pool name.
    """

    attempt: int | None
    failures: int
    pools: Mapping[str, Manifest]


def desired(job: RLJob, defaults: ClusterDefaults, targets: Targets) -> tuple[Manifest, ...]:
    """All children of a running job, in the order in which they are created.

    What a RolloutPool owns follows once that pool was observed, for only then it has the uid to refer to.

    Raises:
        SpecError: a pod template patch does not fit.
    """
    pools: list[Manifest] = []
    owned: list[Manifest] = []
    for pool in job.spec.rollout.pools:
        observed = targets.pools.get(pool.name)
        manifest = rollout_pool(job, defaults, pool, observed)
        pools += [manifest, guards.disruption_budget(job, pool, engines(manifest))]
        if observed is not None:
            owned += pool_children(manifest, uid=observed["metadata"]["uid"])
    children = [
        guards.service_account(job),
        guards.network_policy(job),
        *_secrets(job, defaults),
        config_map_manifest(
            child_metadata(job, names.config_map(job.metadata.name), None), config_text(job, defaults)
        ),
        _deployment(job, defaults, Role.COORDINATOR, replicas=1),
        _deployment(job, defaults, Role.REWARD, replicas=job.spec.reward.replicas),
        *pools,
        *owned,
        *trainer_service(job),
    ]
    if targets.attempt is not None:
        children.append(trainer_job(job, defaults, targets.attempt, targets.failures))
    return (*lasting(job, defaults), *(_stamped(child) for child in children))


def lasting(job: RLJob, defaults: ClusterDefaults) -> tuple[Manifest, ...]:
    """What stays as long as the job does, suspended or ended: the means to audit it. A local run has its folder."""
    return (_stamped(audit_config_map(job, defaults)),) if defaults.per_job else ()


# ---------------------------------------------------------------------------------------------- rollout pools


def rollout_pool(
    job: RLJob, defaults: ClusterDefaults, pool: PoolSpec, observed: Manifest | None
) -> Manifest:
    """The RolloutPool: self-contained, so that it can be handed to another cluster.

    `replicas` follows the RLJob only when the RLJob's own value changes; until then it belongs to whoever scaled
    the pool, beyond the job's bounds too: who put it right would quarrel with an autoscaler without end.
    """
    index = job.spec.rollout.pools.index(pool)
    name = names.child(job.metadata.name, Role.ROLLOUT, pool.name)
    own = str(pool.initial_replicas) if pool.scaling is None else "scaled"
    replicas = pool.initial_replicas
    if observed is not None and observed["metadata"].get("annotations", {}).get(names.SPEC_REPLICAS) == own:
        replicas = observed["spec"].get("replicas", replicas)
    patches = Patches(f"spec.rollout.pools[{index}].template", pool.template)
    template = pod_template(job, defaults, Role.ROLLOUT, names.config_map(name), patches, pool=pool)
    metadata = child_metadata(job, name, Role.ROLLOUT, pool.name)
    return {
        "apiVersion": API_VERSION,
        "kind": "RolloutPool",
        "metadata": {**metadata, "annotations": {names.SPEC_REPLICAS: own}},
        "spec": {
            "job": job.metadata.name,
            "pool": pool.name,
            "replicas": replicas,
            **({} if pool.scaling is None else {"scaling": pool.scaling.model_dump(by_alias=True)}),
            "config": config_text(job, defaults),
            "template": template,
        },
    }


def engines(pool: Manifest) -> int:
    """How many a RolloutPool gets, by its manifest alone."""
    replicas: int = pool["spec"]["replicas"]
    scaling = pool["spec"].get("scaling")
    return replicas if scaling is None else ScalingSpec.model_validate(scaling).bound(replicas)


def pool_children(pool: Manifest, *, uid: str) -> tuple[Manifest, ...]:
    """What the RolloutPool with that uid owns, by its manifest alone."""
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


def _secrets(job: RLJob, defaults: ClusterDefaults) -> list[Manifest]:
    """Each role's NATS credentials, unless the job has a server of its own."""
    issuer = issuer_for(job, defaults)
    return [] if issuer is None else [credentials_secret(job, holder, issuer) for holder in Holder]


def _deployment(job: RLJob, defaults: ClusterDefaults, role: Role, *, replicas: int) -> Manifest:
    patch = job.spec.coordinator.template if role is Role.COORDINATOR else job.spec.reward.template
    patches = Patches(f"spec.{role}.template", patch)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(job, names.child(job.metadata.name, role), role),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": names.identity(job.metadata.name, role)},
            # Two coordinators at once would only fence one another.
            "strategy": {"type": "Recreate"} if role is Role.COORDINATOR else _ONE_BY_ONE,
            "template": pod_template(job, defaults, role, names.config_map(job.metadata.name), patches),
        },
    }


def _stamped(manifest: Manifest) -> Manifest:
    """With its own digest, by which `plan` finds that we want something else than before."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.APPLIED_HASH: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
