"""PURE. What a role's pods are made of: configuration, environment, pod template, metadata.

A configuration change reaches exactly the roles that read it: `READS` says which fields those are, and their
digest is an annotation of the pod template. Replica counts are in nobody's, so they never roll a pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_core.spec import PoolSpec, RLJob
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.cluster_defaults import ClusterDefaults, issuer_for, job_claims, job_config
from rljob_operator.children.metadata import digest
from rljob_operator.children.templates import merge
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.credentials import CREDENTIALS_FILE, secret_name
from rljob_operator.nats.permissions import Holder

# What each role reads of the spec, as dotted paths. The coordinator decides by everything but what is only the
# operator's business; `pool` stands for the role's own pool. Not `pipeline`: a running coordinator, or engine, looks at
# that in its configuration file (`rljob_runtime.process.config_watch`).
READS: Mapping[Role, tuple[str, ...]] = {
    Role.COORDINATOR: (
        "steps", "model", "data", "evaluation", "reward.functions", "algorithm",
        "rollout.engine", "rollout.environment", "rollout.progressTokens", "rollout.sampling", "trainer.checkpoint",
        "trainer.microBatchTokens", "weights", "nats", "trackers",
    ),
    Role.REWARD: ("model", "data", "evaluation", "reward.functions", "reward.timeoutSeconds", "nats"),
    Role.ROLLOUT: (
        "model", "rollout.engine", "rollout.environment", "rollout.progressTokens", "rollout.sampling", "pool.engine",
        "weights", "nats",
    ),
    Role.TRAINER: (
        "model", "data", "algorithm", "rollout.sampling", "trainer.backend", "trainer.options",
        "trainer.numNodes", "trainer.numProcPerNode", "trainer.microBatchTokens", "trainer.checkpoint", "weights",
        "nats",
    ),
}  # fmt: skip

_LOST_NODE_SECONDS = 30
_GROUP = 1000
_CREDENTIALS = "RLJOB_NATS_CREDENTIALS"
_GRACE_SECONDS = {Role.COORDINATOR: 30, Role.REWARD: 30, Role.ROLLOUT: 60, Role.TRAINER: 120}


def command(role: Role | Holder) -> list[str]:
    """How a worker is started."""
    return ["python", "-m", "rljob_runtime.main", role.value]


@dataclass(frozen=True, slots=True)
class Patches:
    """What is laid over the template that all roles share.

    Attributes:
        role: by us, for this role alone.
        user: by the user.
        path: of the user's patch in the manifest, for messages.
    """

    path: str
    user: Manifest | None = None
    role: Manifest = field(default_factory=dict)


def pod_template(
    job: RLJob,
    defaults: ClusterDefaults,
    role: Role,
    config_map: str,
    patches: Patches,
    *,
    pool: PoolSpec | None = None,
) -> Manifest:
    """A role's pod template, whole; without patches it is fit for Pod Security's level Restricted.

    Raises:
        SpecError: a patch does not fit.
    """
    template = _base(job, defaults, role, config_map, pool)
    template = merge(template, _for_role(defaults.template, role), "the operator's worker template")
    template = merge(template, patches.role, role.value)
    template = merge(template, patches.user or {}, patches.path)
    spec = template["spec"]
    spec["tolerations"] = _tolerating_lost_nodes(spec.get("tolerations") or [])
    credentials = _credentials(job, defaults, Holder(role.value))
    if credentials:
        ours = next(c for c in spec["containers"] if c["name"] == role.value)
        if role is Role.COORDINATOR:
            # It creates the job's streams, with credentials that nothing else of the pod has.
            streams = _beside(
                ours, Holder.STREAMS, command(Holder.STREAMS), _credentials(job, defaults, Holder.STREAMS)
            )
            spec["initContainers"] = [*spec.get("initContainers", []), streams]
        ours["env"] = [*ours["env"], *credentials]
    return template


def _base(
    job: RLJob, defaults: ClusterDefaults, role: Role, config_map: str, pool: PoolSpec | None
) -> Manifest:
    ready_file = f"{names.RUN_FOLDER}/ready"
    environment: list[Manifest] = [
        {"name": "RLJOB_CONFIG", "value": f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"},
        {"name": "RLJOB_NATS_URL", "value": job.spec.nats.url or defaults.nats_url},
        {"name": "RLJOB_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "RLJOB_READY_FILE", "value": ready_file},
        {"name": "RLJOB_TERMINATION_LOG", "value": names.TERMINATION_LOG},
    ]
    if pool is not None:
        environment.append({"name": "RLJOB_POOL", "value": pool.name})
    claims = job_claims(job, defaults)
    container: Manifest = {
        "name": role.value,
        "image": job.spec.image or defaults.image,
        "command": command(role),
        "env": environment,
        "volumeMounts": [
            {"name": "config", "mountPath": names.CONFIG_FOLDER, "readOnly": True},
            {"name": "run", "mountPath": names.RUN_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 the container's own
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
            *(storage.mount(claim) for claim in claims),
        ],
        "readinessProbe": {"exec": {"command": ["test", "-e", ready_file]}, "periodSeconds": 2},
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    if job.spec.model.credentials_secret is not None:
        # As variables, which is how model hubs and object stores are told, and a Secret that is missing stands in
        # the pod's status then.
        container["envFrom"] = [{"secretRef": {"name": job.spec.model.credentials_secret}}]
    return {
        "metadata": {
            "labels": names.labels(job.metadata.name, role, None if pool is None else pool.name),
            "annotations": {names.CONFIG_HASH: config_hash(job, defaults, role, pool)},
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
            "terminationGracePeriodSeconds": _GRACE_SECONDS[role],
            "serviceAccountName": names.service_account(job.metadata.name),
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": _GROUP,  # claims can be written to, whoever the image's user is
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def _for_role(template: Manifest, role: Role) -> Manifest:
    """The site's template with its container `worker` named as the role's."""
    if "spec" not in template:
        return template
    containers = [
        {**container, "name": role.value} if container.get("name") == names.ANY_WORKER else container
        for container in template["spec"].get("containers") or []
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


def _tolerating_lost_nodes(given: Sequence[Manifest]) -> list[Manifest]:
    """With ours, unless the user says something about the same: a patch replaces this list as a whole."""
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    keys = {toleration.get("key") for toleration in given}
    return [*given, *(toleration for toleration in ours if toleration["key"] not in keys)]


def _credentials(job: RLJob, defaults: ClusterDefaults, holder: Holder) -> list[Manifest]:
    """The variable with a role's NATS credentials; none where the server asks for none.

    A variable, not a file: a Secret that is missing then stands in the pod's status, which the operator may read.
    """
    issuer = issuer_for(job, defaults)
    secret = job.spec.nats.credentials_secret
    if issuer is not None:
        secret = secret_name(job, holder, issuer)
    if secret is None:
        return []
    source = {"secretKeyRef": {"name": secret, "key": CREDENTIALS_FILE}}
    return [{"name": _CREDENTIALS, "valueFrom": source}]


def reader_pod(job: RLJob, defaults: ClusterDefaults, config_map: str, arguments: Sequence[str]) -> Manifest:
    """The spec of a pod that looks on and ends: the coordinator's, with the reader's credentials.

    Args:
        config_map: with the configuration.
        arguments: the command.
    """
    patches = Patches("spec.coordinator.template", job.spec.coordinator.template)
    spec = pod_template(job, defaults, Role.COORDINATOR, config_map, patches)["spec"]
    ours = next(c for c in spec["containers"] if c["name"] == Role.COORDINATOR.value)
    env = [variable for variable in ours["env"] if variable["name"] != _CREDENTIALS]
    looking = _beside({**ours, "env": env}, "audit", arguments, _credentials(job, defaults, Holder.READER))
    # The workers' own account goes when the job ends.
    kept = {field: spec[field] for field in spec if field not in {"initContainers", "serviceAccountName"}}
    return {**kept, "containers": [looking], "restartPolicy": "Never"}


def _beside(
    container: Manifest, name: str, arguments: Sequence[str], credentials: Sequence[Manifest]
) -> Manifest:
    """Another container in the place of a role's, as its image and patches make it."""
    kept: Manifest = {
        name: container[name]
        for name in ("image", "imagePullPolicy", "workingDir", "envFrom", "volumeMounts", "resources")
        if name in container
    }
    return {
        **kept,
        "name": str(name),
        "command": list(arguments),
        "env": [*container["env"], *credentials],
        "terminationMessagePath": container["terminationMessagePath"],
        "terminationMessagePolicy": container["terminationMessagePolicy"],
        "securityContext": container["securityContext"],
    }


def config_hash(job: RLJob, defaults: ClusterDefaults, role: Role, pool: PoolSpec | None = None) -> str:
    """Digest of what a role reads (`READS`) and of where it finds the job's files."""
    config = job_config(job, defaults)
    spec = job.spec.model_dump(mode="json", by_alias=True)
    if pool is not None:
        spec["pool"] = pool.model_dump(mode="json", by_alias=True)
    read = {path: _at(spec, path.split(".")) for path in READS[role]}
    return digest([read, config.uid, config.weights_uri, config.checkpoint_uri, config.trainer_log_uri])


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        value = value[step]
    return value


def config_map_manifest(metadata: Manifest, config: str) -> Manifest:
    """The ConfigMap that a pod mounts at `names.CONFIG_FOLDER`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {names.CONFIG_FILE: config},
    }
