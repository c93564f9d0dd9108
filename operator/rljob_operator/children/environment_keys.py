"""How rollout workers reach the environment pods of their job, and the Secrets by which both know each other."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from hashlib import sha256

from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.spec import EnvironmentSpec
from rljob_operator import names
from rljob_operator.children.egress import EPISODES
from rljob_operator.children.metadata import child_metadata
from rljob_operator.children.nats_credentials import Access
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.credentials import JobKeys

FIELD = "spec.rollout.environment"
_VOLUME = "environment-keys"
_PODS, _WORKERS = "pods", "workers"


def environment_of(job: ResolvedJob) -> EnvironmentSpec | None:
    """The environment that has pods of its own; None without one, or where each engine has a server of its own."""
    return job.spec.rollout.environment if job.defaults.containers else None


def secrets(job: ResolvedJob) -> list[Manifest]:
    """The Secrets with the keys of both ends.

    Raises:
        SpecError: the operator has no seed to make keys of.
    """
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": child_metadata(job.job, _secret_name(job, end), None),
            "type": "Opaque",
            "immutable": True,
            "data": {
                name: base64.b64encode(text.encode()).decode() for name, text in _files(job, end).items()
            },
        }
        for end in (_PODS, _WORKERS)
    ]


def pod_access(job: ResolvedJob) -> Access:
    """What the container of an environment pod needs to know the job's workers."""
    return _access(_secret_name(job, _PODS))


def episode_access(job: ResolvedJob) -> Access | None:
    """What a rollout worker needs to have its episodes played; None if it starts a server of its own.

    Raises:
        SpecError: as of `secrets`.
    """
    if environment_of(job) is None:
        return None
    host = f"{names.child(job.metadata.name, Role.ENVIRONMENT)}.{job.metadata.namespace}.svc"
    address = {"name": worker_protocol.ENVIRONMENT_ADDRESS, "value": f"{host}:{EPISODES}"}
    own = _access(_secret_name(job, _WORKERS))
    return Access([address, *own.variables], own.mounts, own.volumes)


def _access(secret: str) -> Access:
    return Access(
        [{"name": worker_protocol.ENVIRONMENT_KEYS, "value": names.ENVIRONMENT_FOLDER}],
        [{"name": _VOLUME, "mountPath": names.ENVIRONMENT_FOLDER, "readOnly": True}],
        [{"name": _VOLUME, "secret": {"secretName": secret, "defaultMode": 0o440}}],
    )


def _secret_name(job: ResolvedJob, end: str) -> str:
    """The name of one end's Secret; it contains their hash, so that a Secret never changes."""
    text = "".join(_files(job, end).values())
    return f"{job.metadata.name}-environment-{end}-{sha256(text.encode()).hexdigest()[:10]}"


def _files(job: ResolvedJob, end: str) -> Mapping[str, str]:
    issuer = job.defaults.issuer
    if issuer is None:
        raise SpecError(
            FIELD,
            "needs keys by which its pods and the engines know each other: the operator makes them from its signing "
            "seed, which it does not have. Install it with `rljob nats-setup`, or remove environment",
        )
    # It loads `cryptography`, which an operator without such jobs does not need.
    from rljob_operator.nats.environment_certificates import environment_keys

    keys = environment_keys(JobKeys.of(job.job, issuer))
    return keys.pods if end == _PODS else keys.workers
