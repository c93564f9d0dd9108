"""The pod template of each worker role: containers, environment variables, volumes, security settings.

A change of the spec restarts exactly the pods whose role reads the changed field: `READS` lists the fields of each
role, and a digest of their values is an annotation of the pod template. No role lists a replica count, so scaling
never restarts a pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_core import worker_protocol
from rljob_core.coordinator_reads import COORDINATOR_READS, value_at
from rljob_core.spec import PoolSpec
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.environment_keys import episode_access
from rljob_operator.children.metadata import digest
from rljob_operator.children.metrics_port import expose, withdraw_unfit
from rljob_operator.children.model_download import add_download, credentials, with_worker_settings
from rljob_operator.children.nats_credentials import access
from rljob_operator.children.queue_admission import placed, pod_set_of_pool
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.scoring_container import (
    add_scoring_container,
    check_separation,
    limit_scoring_container,
    of_any_worker,
)
from rljob_operator.children.templates import (
    container_security,
    merge,
    pod_security,
    tolerations_for_lost_nodes,
)
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.permissions import Holder

# The fields of the spec that each role reads, as dotted paths; `pool` stands for the pool of the rollout worker.
# `pipeline` is missing on purpose: a running coordinator or engine follows its changes in the configuration file
# (`rljob_runtime.process.config_watch`).
READS: Mapping[Role, tuple[str, ...]] = {
    Role.COORDINATOR: COORDINATOR_READS,
    Role.REWARD: (
        "model.uri", "data", "evaluation", "reward.functions", "reward.weights", "reward.perGroup",
        "reward.timeoutSeconds", "reward.timeoutScore", "reward.network", "reward.skipSpecialTokens",
        "algorithm.truncated", "algorithm.truncationPenalty", "samples",
        "nats.url", "nats.credentialsSecret",
    ),
    Role.ROLLOUT: (
        "model", "rollout.engine", "rollout.environment", "rollout.progressTokens", "rollout.hangSeconds",
        "rollout.weightSync", "data.promptTemplate", "data.chatTemplateKwargs",
        "rollout.sampling", "pool.engine", "weights", "nats.url", "nats.credentialsSecret",
    ),
    Role.TRAINER: (
        "model", "data", "algorithm", "rollout.sampling", "trainer.backend", "trainer.options",
        "trainer.numNodes", "trainer.numProcPerNode", "trainer.microBatchTokens", "trainer.checkpoint", "weights",
        "nats.url", "nats.credentialsSecret",
    ),
    Role.TRACKER: ("trackers", "nats.url", "nats.credentialsSecret"),
}  # fmt: skip

_STREAMS = "streams"
"""The role that creates a job's streams, and ends."""
GRACE_SECONDS = {
    Role.COORDINATOR: 30,
    Role.REWARD: 30,
    Role.ROLLOUT: 60,
    Role.TRAINER: 120,
    Role.TRACKER: 30,
}


def command(role: str) -> list[str]:
    """The command that starts a worker."""
    return ["python", "-m", worker_protocol.MODULE, str(role)]


@dataclass(frozen=True, slots=True)
class Patches:
    """The patches that are applied to the template that all roles share.

    Attributes:
        path: path of the user's patch in the RLJob, for error messages.
        user: the user's patch.
        role: the operator's own patch for this role.
    """

    path: str
    user: Manifest | None = None
    role: Manifest = field(default_factory=dict)


def pod_template(
    job: ResolvedJob,
    role: Role,
    config_map: str,
    patches: Patches,
    *,
    pool: PoolSpec | None = None,
) -> Manifest:
    """A role's complete pod template; without patches it satisfies the Pod Security level Restricted.

    Raises:
        SpecError: a patch does not fit.
    """
    base = template = add_download(_base(job, role, config_map, pool), job, role)
    scoring = role is Role.REWARD and job.defaults.containers
    if scoring:
        template = add_scoring_container(template)
    cluster_template = _for_role(job.defaults.template, role, scoring=scoring)
    template = merge(template, cluster_template, "the operator's worker template")
    template = merge(template, patches.role, role.value)
    template = merge(template, patches.user or {}, patches.path)
    template = with_worker_settings(template, base, role)
    if job.defaults.admission is not None:
        pod_set = role.value if pool is None else pod_set_of_pool(pool.name)
        template = placed(template, job.defaults.admission.placements.get(pod_set))
    spec = template["spec"]
    withdraw_unfit(spec, role.value, job.defaults.metrics_port)
    if scoring:
        check_separation(spec, patches.path)
        limit_scoring_container(spec)
    spec["tolerations"] = tolerations_for_lost_nodes(spec.get("tolerations") or [])
    nats = access(job, Holder(role.value))
    ours = next(c for c in spec["containers"] if c["name"] == role.value)
    if role is Role.ROLLOUT and (episodes := episode_access(job)) is not None:
        ours["env"] = [*ours["env"], *episodes.variables]
        ours["volumeMounts"] = [*ours["volumeMounts"], *episodes.mounts]
        spec["volumes"] = [*spec["volumes"], *episodes.volumes]
    if nats.variables:
        if role is Role.COORDINATOR and job.issuer is None:
            # With credentials of the user's own, the job creates its streams itself.
            streams = sibling(_without_storage(ours, job), _STREAMS, command(_STREAMS), nats.variables)
            spec["initContainers"] = [*spec.get("initContainers", []), streams]
        ours["env"] = [*ours["env"], *nats.variables]
        ours["volumeMounts"] = [*ours["volumeMounts"], *nats.mounts]
        spec["volumes"] = [*spec["volumes"], *nats.volumes]
    return template


def _base(job: ResolvedJob, role: Role, config_map: str, pool: PoolSpec | None) -> Manifest:
    ready_file = f"{names.RUN_FOLDER}/ready"
    written = {Role.TRAINER: job.written_claims, Role.REWARD: job.samples_claims}.get(role, ())
    environment: list[Manifest] = [
        {"name": worker_protocol.CONFIG, "value": f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"},
        {"name": worker_protocol.NATS_URL, "value": job.nats_url_of(pool)},
        {"name": worker_protocol.POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": worker_protocol.READY_FILE, "value": ready_file},
        {"name": worker_protocol.TERMINATION_LOG, "value": names.TERMINATION_LOG},
    ]
    if pool is not None:
        environment.append({"name": worker_protocol.POOL, "value": pool.name})
    claims = () if role is Role.TRACKER else job.claims_of(pool)
    container: Manifest = {
        "name": role.value,
        "image": job.image,
        "command": command(role),
        "env": environment,
        "volumeMounts": [
            {"name": "config", "mountPath": names.CONFIG_FOLDER, "readOnly": True},
            {"name": "run", "mountPath": names.RUN_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 the container's own
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
            *(storage.mount(claim, writable=claim in written) for claim in claims),
        ],
        "readinessProbe": {"exec": {"command": ["test", "-e", ready_file]}, "periodSeconds": 2},
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
    }
    expose(container, job.defaults.metrics_port if role is not Role.TRACKER else 0)
    if job.needs_object_store(role) and (found := credentials(job)):
        container["envFrom"] = found
    return {
        "metadata": {
            "labels": names.labels(job.metadata.name, role, None if pool is None else pool.name),
            "annotations": {names.CONFIG_HASH: config_hash(job, role, pool)},
        },
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": config_map}},
                {"name": "run", "emptyDir": {}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
                {"name": "temporary", "emptyDir": {}},
                *(storage.volume(claim) for claim in claims),
            ],
            "imagePullSecrets": [{"name": name} for name in job.spec.image_pull_secrets],
            "terminationGracePeriodSeconds": GRACE_SECONDS[role],
            "serviceAccountName": names.service_account(job.metadata.name),
            "automountServiceAccountToken": False,
            "securityContext": pod_security(),
        },
    }


def _for_role(template: Manifest, role: Role, *, scoring: bool) -> Manifest:
    """The cluster's template with its container `worker` renamed to the role's containers."""
    if "spec" not in template:
        return template
    containers: list[Manifest] = []
    for container in template["spec"].get("containers") or []:
        name = container.get("name")
        if name == names.ANY_WORKER:
            containers.append({**container, "name": role.value})
            if scoring:
                containers.append(of_any_worker(container))
        elif name not in {worker_protocol.SCORER, Role.ENVIRONMENT} or (
            scoring and name == worker_protocol.SCORER
        ):
            containers.append(container)
    return {**template, "spec": {**template["spec"], "containers": containers}}


_OF_SIBLINGS = (
    "image", "imagePullPolicy", "workingDir", "envFrom", "volumeMounts", "resources", "terminationMessagePath",
    "terminationMessagePolicy", "securityContext",
)  # fmt: skip


def sibling(
    container: Manifest, name: str, arguments: Sequence[str], credentials: Sequence[Manifest]
) -> Manifest:
    """A container with another command and the image, mounts and patches of a role's container."""
    kept: Manifest = {name: container[name] for name in _OF_SIBLINGS if name in container}
    return {
        **kept,
        "name": str(name),
        "command": list(arguments),
        "env": [*container["env"], *credentials],
    }


def _without_storage(container: Manifest, job: ResolvedJob) -> Manifest:
    """The container without the job's claims and the credentials of its object store."""
    claims = [storage.mount_path(claim) for claim in job.claims]
    storing = {"secretRef": {"name": job.spec.model.credentials_secret}}
    return {
        **container,
        "volumeMounts": [m for m in container["volumeMounts"] if m["mountPath"] not in claims],
        "envFrom": [source for source in container.get("envFrom", []) if source != storing],
    }


def config_hash(job: ResolvedJob, role: Role, pool: PoolSpec | None = None) -> str:
    """Digest of the fields that a role reads (`READS`), of the job's folders and, for a coordinator, of its sites."""
    config, spec = job.config, job.spec_values
    if pool is not None:
        spec = {**spec, "pool": pool.model_dump(mode="json", by_alias=True)}
    read = {path: value_at(spec, path) for path in READS[role]}
    values = [read, config.uid, config.weights_uri, config.checkpoint_uri, config.trainer_log_uri]
    if role is Role.COORDINATOR and job.site_values:
        values.append(job.site_values)
    return digest(values)
