"""The child manifests that should exist for a running RLJob, ready for server-side apply.

| child | name |
|---|---|
| ConfigMap with the `JobConfig` | `<job>-config` |
| Deployment of the coordinator (one, Recreate) and of the reward workers | `<job>-coordinator`, `<job>-reward` |
| Deployment per tracker, and the NetworkPolicy of their pods | `<job>-tracker-<name>-<digest>`, `<job>-trackers` |
| Deployment, headless Service, NetworkPolicy and Secrets of the environment pods | `<job>-environment` |
| RolloutPool per pool; unless it is at a site, its ConfigMap and Deployment | `<job>-rollout-<pool>` |
| Secrets with each role's NATS credentials | `<job>-nats-<role>-<hash>` |
| ConfigMap with the tokens of these credentials, which expire | `<job>-nats-tokens` |
| ConfigMap with the Pod that audits the job, which stays when the job ends | `<job>-audit` |
| ServiceAccount, NetworkPolicies, a PodDisruptionBudget per pool | see `isolation.py` |
| headless Service (of several nodes) and Job of the trainer's attempt | `<job>-trainer`, `<job>-trainer-<attempt>` |
| Workload or PodGroup of the attempt, see `gang_object.py` | `<job>-trainer-<attempt>` |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rljob_core import worker_protocol
from rljob_core.spec import API_VERSION, PoolSpec, ScalingSpec
from rljob_operator import names
from rljob_operator.children import isolation, limits
from rljob_operator.children.audit_pod import audit_config_map
from rljob_operator.children.environment_pods import environment_children
from rljob_operator.children.gang_object import with_gang
from rljob_operator.children.metadata import (
    child_metadata,
    config_map,
    kept,
    pool_child_metadata,
    with_digest,
)
from rljob_operator.children.nats_credentials import (
    credentials_secret,
    tokens_config_map,
    viewer_config_map,
)
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.tracker_pods import roles, trackers
from rljob_operator.children.trainer_gang import trainer_job, trainer_service
from rljob_operator.children.worker_pod import Patches, pod_template
from rljob_operator.cluster.gang_kinds import GangKind
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
        gang: the kind of object by which the attempt's pods are placed together; None to place each by itself.
        lost_sites: sites whose work the coordinator is not to keep for them while it does not reach them.
        has_run: whether the job has ever had a trainer or engines.
    """

    attempt: int | None
    failures: int
    pools: Mapping[str, Manifest]
    restorable: bool = False
    tokens_expire: int | None = None
    scaled: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    nodes: int | None = None
    gang: GangKind | None = None
    lost_sites: tuple[str, ...] = ()
    has_run: bool = False


def desired(job: ResolvedJob, targets: Targets) -> tuple[Manifest, ...]:
    """All children of a running job, in the order in which they are created.

    Pods that start later download the very revisions that the coordinator's pod has found. Until then, a job that has
    never run has no others, and of one that has, the reward workers are left out: see `model_downloads.held_back`.

    The children of a RolloutPool are included once the pool has been observed, because they refer to its uid.

    Raises:
        SpecError: a pod template patch does not fit, two children would have the same name, or the children would be
            too large.
    """
    limits.check_configuration(job)
    if job.unresolved and not targets.has_run:
        made = (*permanent_children(job, targets), *map(with_digest, _first_children(job, targets)))
        limits.check_names(made)
        limits.check_sizes(made)
        return made
    pools: list[Manifest] = []
    owned: list[Manifest] = []
    for pool in job.spec.rollout.pools:
        observed = targets.pools.get(pool.name)
        manifest = rollout_pool(job, pool, observed, scaled=targets.scaled.get(pool.name))
        pools.append(manifest)
        if "managedBy" in manifest["spec"]:
            continue  # the operator of a site makes the rest in its own cluster
        pools.append(_disruption_budget(job, manifest))
        if observed is not None:
            most = None if job.defaults.admission is None else job.defaults.admission.engines.get(pool.name)
            owned += pool_children(manifest, uid=observed["metadata"]["uid"], most=most)
    children = [
        *_first_children(job, targets),
        *([] if job.unresolved else [role_deployment(job, Role.REWARD, replicas=job.spec.reward.replicas)]),
        *environment_children(job),
        *trackers(job),
        *pools,
        *owned,
        *trainer_service(job.job),
    ]
    if targets.attempt is not None:
        nodes = targets.nodes or job.spec.trainer.num_nodes
        children += with_gang(job, trainer_job(job, targets.attempt, targets.failures, nodes), targets.gang)
    made = (
        *permanent_children(job, targets),
        *(with_digest(child) for child in children),
    )
    limits.check_names(made)
    limits.check_sizes(made)
    return made


def _first_children(job: ResolvedJob, targets: Targets) -> list[Manifest]:
    """The coordinator, and what every pod needs."""
    return [
        isolation.service_account(child_metadata(job.job, names.service_account(job.metadata.name), None)),
        isolation.network_policy(job),
        *_secrets(job),
        _config_map(job, targets.lost_sites),
        role_deployment(job, Role.COORDINATOR, replicas=1),
    ]


def permanent_children(job: ResolvedJob, targets: Targets) -> tuple[Manifest, ...]:
    """The children that do not end with the job's pods, but exist while it is suspended or has ended, too.

    On a cluster these are the ConfigMaps of the audit and the viewer, the policies and credentials of the Pods in the
    former, and all tokens; those of the restore only while it is possible. A local run is audited, backed up and
    restored as a folder and needs none.
    """
    if not job.defaults.per_job:
        return ()
    policies = map(kept, isolation.command_policies(job))
    looked_at_by = tuple(map(with_digest, (audit_config_map(job), viewer_config_map(job), *policies)))
    if job.issuer is None:
        return looked_at_by
    holders = [Holder.READER, *([Holder.RESTORER] if targets.restorable else [])]
    secrets = [with_digest(kept(credentials_secret(job.job, h, job.issuer))) for h in holders]
    everyone = [*map(Holder, roles(job)), *holders, Holder.VIEWER]
    tokens = tokens_config_map(job.job, everyone, job.issuer, expires=targets.tokens_expire)
    return (*looked_at_by, *secrets, with_digest(tokens))


# ---------------------------------------------------------------------------------------------- rollout pools


def rollout_pool(
    job: ResolvedJob, pool: PoolSpec, observed: Manifest | None, *, scaled: int | None = None
) -> Manifest:
    """The manifest of a RolloutPool; it is self-contained, so that another cluster could run the pool.

    `replicas` follows the RLJob only when the RLJob's own value changes. In between it belongs to the person or the
    autoscaler that scales the pool, even beyond the job's bounds: an operator that corrected it would overwrite the
    autoscaler's value, which the autoscaler would set again, without end. A pool that changes from `replicas` to
    `scaling` keeps its engines as far as the new bounds allow. Of scaling policy Internal, the operator is the
    autoscaler: `scaled` is the number that it has decided on.
    """
    index = job.spec.rollout.pools.index(pool)
    name = names.child(job.metadata.name, Role.ROLLOUT, pool.name)
    own = str(pool.initial_replicas) if pool.scaling is None else "scaled"
    replicas = pool.initial_replicas
    if observed is not None:
        found = observed["spec"].get("replicas", replicas)
        if observed["metadata"].get("annotations", {}).get(names.SPEC_REPLICAS) == own:
            replicas = found
        elif pool.scaling is not None:
            # Not fewer than it starts with: of a pool of 0 an HPA takes no notice.
            replicas = max(pool.within_bounds(found), replicas)
    if scaled is not None:
        replicas = scaled
    patches = Patches(f"spec.rollout.pools[{index}].template", pool.template)
    template = pod_template(job, Role.ROLLOUT, names.config_map(name), patches, pool=pool)
    metadata = child_metadata(job.job, name, Role.ROLLOUT, pool.name)
    elsewhere = pool.site is not None and job.defaults.sites
    return {
        "apiVersion": API_VERSION,
        "kind": "RolloutPool",
        "metadata": {**metadata, "annotations": {names.SPEC_REPLICAS: own}},
        "spec": {
            "job": job.metadata.name,
            "pool": pool.name,
            **({"managedBy": names.site_manager(pool.site or "")} if elsewhere else {}),
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


def _config_map(job: ResolvedJob, lost_sites: tuple[str, ...]) -> Manifest:
    """The job's ConfigMap; of the lost sites, which the coordinator reads, it has a file only if there are any."""
    metadata = child_metadata(job.job, names.config_map(job.metadata.name), None)
    lost = {worker_protocol.LOST_SITES_FILE: json.dumps(lost_sites)} if lost_sites else {}
    return config_map(metadata, {names.CONFIG_FILE: job.config_text, **lost})


def _disruption_budget(job: ResolvedJob, pool: Manifest) -> Manifest:
    name, spec = pool["metadata"]["name"], pool["spec"]
    metadata = child_metadata(job.job, name, Role.ROLLOUT, spec["pool"])
    return isolation.disruption_budget(
        metadata, job=job.spec, of=spec["job"], pool=spec["pool"], replicas=engines(pool)
    )


def pool_children(pool: Manifest, *, uid: str, most: int | None = None) -> tuple[Manifest, ...]:
    """The children of the RolloutPool with that uid, rendered from the pool's manifest alone.

    Of more engines than `most`, a queue has not admitted those beyond it yet.
    """
    name, spec = pool["metadata"]["name"], pool["spec"]
    replicas = engines(pool) if most is None else min(engines(pool), most)
    return (
        config_map(
            pool_child_metadata(pool, names.config_map(name), uid=uid), {names.CONFIG_FILE: spec["config"]}
        ),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": pool_child_metadata(pool, name, uid=uid),
            "spec": {
                "replicas": replicas,
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
    return [credentials_secret(job.job, Holder(role), job.issuer) for role in roles(job)]


def role_deployment(job: ResolvedJob, role: Role, *, replicas: int) -> Manifest:
    """The Deployment of the coordinator, or of the reward workers."""
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
