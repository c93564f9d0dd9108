"""PURE. What a role's pods are made of: configuration, environment, pod template, metadata.

A configuration change reaches exactly the roles that read it: `READS` says which fields those are, and their
digest is an annotation of the pod template. Replica counts are in nobody's, so they never roll a pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import API_VERSION, PoolSpec, RLJob
from rljob_operator import names, storage
from rljob_operator.cluster import Manifest
from rljob_operator.names import Role

# What each role reads of the spec, as dotted paths. The coordinator decides by everything but what is only the
# operator's business; `pool` stands for the role's own pool.
READS: Mapping[Role, tuple[str, ...]] = {
    Role.COORDINATOR: (
        "steps", "model", "data", "evaluation", "reward.functions", "algorithm", "pipeline",
        "rollout.engine", "rollout.environment", "rollout.sampling", "trainer.checkpoint",
        "trainer.microBatchTokens", "weights", "nats", "trackers",
    ),
    Role.REWARD: ("model", "data", "evaluation", "reward.functions", "reward.timeoutSeconds", "nats"),
    Role.ROLLOUT: (
        "model", "pipeline.inflight", "rollout.engine", "rollout.environment", "rollout.sampling", "pool.engine",
        "weights", "nats",
    ),
    Role.TRAINER: (
        "model", "data", "algorithm", "pipeline", "rollout.sampling", "trainer.backend", "trainer.options",
        "trainer.numNodes", "trainer.numProcPerNode", "trainer.microBatchTokens", "trainer.checkpoint", "weights",
        "nats",
    ),
}  # fmt: skip

_LOST_NODE_SECONDS = 30
_GRACE_SECONDS = {Role.COORDINATOR: 30, Role.REWARD: 30, Role.ROLLOUT: 60, Role.TRAINER: 120}


@dataclass(frozen=True, slots=True)
class Site:
    """What the place, not the user, decides. URIs are used where the spec gives none.

    Attributes:
        per_job: the URIs that specs give are shared by many jobs, of which each gets a folder of its own.
    """

    nats_url: str
    weights_uri: str
    checkpoint_uri: str
    trainer_log_uri: str
    image: str = "rljob"
    per_job: bool = False


def job_config(job: RLJob, site: Site) -> JobConfig:
    """What the workers load: their own view of volumes, whole URIs.

    Raises:
        SpecError: neither the spec nor the site says where weights or checkpoints go.
    """
    spec = job.spec
    given = {
        "spec.weights.uri": spec.weights.uri or site.weights_uri,
        "spec.trainer.checkpoint.uri": spec.trainer.checkpoint.uri or site.checkpoint_uri,
    }
    for field, uri in given.items():
        if not uri:
            raise SpecError(
                field, "is needed: write the place that all pods share, such as pvc://claim/folder"
            )
    folder = f"/{job.metadata.name}-{job.metadata.uid}" if site.per_job else ""
    weights, checkpoints = (f"{storage.seen_by_worker(uri)}{folder}" for uri in given.values())
    model = spec.model.model_copy(update={"uri": storage.seen_by_worker(spec.model.uri)})
    return JobConfig(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        uid=job.metadata.uid or "",
        spec=spec.model_copy(update={"model": model}),
        weights_uri=weights,
        checkpoint_uri=checkpoints,
        trainer_log_uri=site.trainer_log_uri or f"{checkpoints}/trainer-log",
    )


def command(role: Role) -> list[str]:
    """How a worker is started."""
    return ["python", "-m", "rljob_runtime.main", role.value]


def pod_template(
    job: RLJob, site: Site, role: Role, config_map: str, pool: PoolSpec | None = None
) -> Manifest:
    """A role's pod template, before the user's patch; fit for Pod Security's level Restricted."""
    ready_file = f"{names.RUN_FOLDER}/ready"
    environment: list[Manifest] = [
        {"name": "RLJOB_CONFIG", "value": f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"},
        {"name": "RLJOB_NATS_URL", "value": job.spec.nats.url or site.nats_url},
        {"name": "RLJOB_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "RLJOB_READY_FILE", "value": ready_file},
        {"name": "RLJOB_TERMINATION_LOG", "value": names.TERMINATION_LOG},
    ]
    if pool is not None:
        environment.append({"name": "RLJOB_POOL", "value": pool.name})
    claims = storage.claims([uri for uri in (*_uris(job), site.weights_uri, site.checkpoint_uri) if uri])
    container = {
        "name": role.value,
        "image": job.spec.image or site.image,
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
    return {
        "metadata": {
            "labels": names.labels(job.metadata.name, role, None if pool is None else pool.name),
            "annotations": {names.CONFIG_HASH: config_hash(job, site, role, pool)},
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
            "tolerations": [
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _LOST_NODE_SECONDS,
                }
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
            "imagePullSecrets": [{"name": name} for name in job.spec.image_pull_secrets],
            "terminationGracePeriodSeconds": _GRACE_SECONDS[role],
            "serviceAccountName": names.service_account(job.metadata.name),
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }


def _uris(job: RLJob) -> list[str | None]:
    spec = job.spec
    return [spec.model.uri, spec.weights.uri, spec.trainer.checkpoint.uri]


def config_hash(job: RLJob, site: Site, role: Role, pool: PoolSpec | None = None) -> str:
    """Digest of what a role reads (`READS`) and of where it finds the job's files."""
    config = job_config(job, site)
    spec = job.spec.model_dump(mode="json", by_alias=True)
    if pool is not None:
        spec["pool"] = pool.model_dump(mode="json", by_alias=True)
    read = {path: _at(spec, path.split(".")) for path in READS[role]}
    return digest([read, config.uid, config.weights_uri, config.checkpoint_uri, config.trainer_log_uri])


def _at(value: Any, path: Sequence[str]) -> Any:
    for field in path:
        value = value[field]
    return value


def config_text(job: RLJob, site: Site) -> str:
    """The `JobConfig` as JSON."""
    return job_config(job, site).model_dump_json(by_alias=True)


def config_map_manifest(metadata: Manifest, config: str) -> Manifest:
    """The ConfigMap that a pod mounts at `names.CONFIG_FOLDER`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {names.CONFIG_FILE: config},
    }


def child_metadata(job: RLJob, name: str, role: Role | None, pool: str | None = None) -> Manifest:
    """Metadata of what an RLJob owns."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": names.labels(job.metadata.name, role, pool),
        "ownerReferences": [owner_reference("RLJob", job.metadata.name, job.metadata.uid or "")],
    }


def owner_reference(kind: str, name: str, uid: str) -> Manifest:
    """The reference by which a child goes when its owner goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def digest(value: Any) -> str:
    """Short digest of a JSON value, whatever the order of its fields."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
