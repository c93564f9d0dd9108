"""The NATS credentials of a job's roles: Secrets with what is secret, and the ConfigMap with the tokens, which expire.

A pod has the Secret as a variable: a missing one then shows in the pod's status, which the operator reads. It has the
token as a file, which the kubelet replaces within about a minute after the ConfigMap has changed.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from rljob_core import worker_protocol
from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.metadata import (
    child_metadata,
    config_map,
    kept,
    pool_child_metadata,
    with_digest,
)
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import CREDENTIALS_FILE, Issuer, JobKeys, job_token, secret_credentials
from rljob_operator.nats.permissions import Holder

TOKEN_VOLUME = "nats-token"  # noqa: S105 a volume's name
VIEWER_SERVER = "server"
"""Key of the address of the NATS server in a viewer's ConfigMap."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a container needs to be a role's client of NATS.

    Attributes:
        variables: of the container.
        mounts: of the container.
        volumes: of its pod.
    """

    variables: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()
    volumes: Sequence[Manifest] = ()


def access(job: ResolvedJob, holder: Holder) -> Access:
    """What a container needs to be a role's client; nothing if the NATS server does not authenticate clients."""
    if job.issuer is None:
        own = job.spec.nats.credentials_secret
        return Access() if own is None else Access([_variable(own)])
    return _access(secret_name(job.job, holder, job.issuer), names.tokens(job.metadata.name), holder)


def site_access(pool: str, keys: JobKeys) -> Access:
    """What engines of a pool at a site need to be clients; the site's operator makes them for each pool."""
    return _access(_secret_name(pool, keys, Holder.ROLLOUT), names.tokens(pool), Holder.ROLLOUT)


def _access(secret: str, tokens: str, holder: Holder) -> Access:
    items = [{"key": holder.value, "path": names.JWT_FILE}]
    return Access(
        [
            _variable(secret),
            {"name": worker_protocol.NATS_JWT, "value": f"{names.JWT_FOLDER}/{names.JWT_FILE}"},
        ],
        [{"name": TOKEN_VOLUME, "mountPath": names.JWT_FOLDER, "readOnly": True}],
        [{"name": TOKEN_VOLUME, "configMap": {"name": tokens, "items": items}}],
    )


def _variable(secret: str) -> Manifest:
    source = {"secretKeyRef": {"name": secret, "key": CREDENTIALS_FILE}}
    return {"name": worker_protocol.NATS_CREDENTIALS, "valueFrom": source}


def secret_name(job: RLJob, holder: Holder, issuer: Issuer) -> str:
    """Name of the Secret with a role's credentials; it contains their hash, so that a Secret never changes."""
    return _secret_name(job.metadata.name, JobKeys.of(job, issuer), holder)


def _secret_name(owner: str, keys: JobKeys, holder: Holder) -> str:
    text = secret_credentials(keys, holder)
    return f"{owner}-nats-{holder}-{sha256(text.encode()).hexdigest()[:10]}"


def credentials_secret(job: RLJob, holder: Holder, issuer: Issuer) -> Manifest:
    """The Secret that holds a role's credentials but its token."""
    metadata = child_metadata(job, secret_name(job, holder, issuer), None)
    return _secret(metadata, JobKeys.of(job, issuer), holder)


def _secret(metadata: Manifest, keys: JobKeys, holder: Holder) -> Manifest:
    text = secret_credentials(keys, holder)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "immutable": True,
        "data": {CREDENTIALS_FILE: base64.b64encode(text.encode()).decode()},
    }


def site_credentials(pool: Manifest, keys: JobKeys, *, uid: str, expires: int) -> tuple[Manifest, Manifest]:
    """The Secret and the ConfigMap with the token of the engines of a pool at a site.

    Args:
        pool: the site's RolloutPool.
        keys: of the job, of the site's own making.
        uid: of the RolloutPool.
        expires: second since 1970 from which the server refuses the token.
    """
    name = pool["metadata"]["name"]
    secret = _secret_name(name, keys, Holder.ROLLOUT)
    return (
        _secret(pool_child_metadata(pool, secret, uid=uid), keys, Holder.ROLLOUT),
        config_map(
            pool_child_metadata(pool, names.tokens(name), uid=uid),
            {Holder.ROLLOUT.value: job_token(keys, Holder.ROLLOUT, expires)},
        ),
    )


def tokens_config_map(
    job: RLJob, holders: Sequence[Holder], issuer: Issuer, *, expires: int | None
) -> Manifest:
    """The ConfigMap with the roles' tokens, a key for each role.

    It exists as long as the job: pods of a job whose spec was changed into one that does not fit continue, and so do
    audits of one that has ended.
    """
    keys = JobKeys.of(job, issuer)
    metadata = child_metadata(job, names.tokens(job.metadata.name), None)
    return kept(config_map(metadata, {holder.value: job_token(keys, holder, expires) for holder in holders}))


def viewer_config_map(job: ResolvedJob) -> Manifest:
    """The ConfigMap `<job>-viewer`, with which `kubectl rljob` reads a job: the server's address, and credentials.

    A ConfigMap and no Secret: RBAC cannot let people read the Secrets of jobs and no others, so that who may look at
    jobs would read all Secrets of a namespace. What it holds opens this job's streams, for reading, and no weights; it
    is good for nothing without a way to the NATS server, which is a right of its own (`pods/portforward`), nor without
    the token, which expires. It exists as long as the job.
    """
    data = {VIEWER_SERVER: job.nats_url}
    if job.issuer is not None:
        data[CREDENTIALS_FILE] = secret_credentials(JobKeys.of(job.job, job.issuer), Holder.VIEWER)
    metadata = child_metadata(job.job, names.viewer(job.metadata.name), None)
    return kept(config_map(metadata, data))


def renewed_tokens(job: RLJob, found: Manifest, issuer: Issuer, *, expires: int) -> Manifest:
    """The ConfigMap as it exists, with tokens that expire later, or with the same."""
    holders = [holder for holder in Holder if holder.value in found.get("data", {})]
    return with_digest(tokens_config_map(job, holders, issuer, expires=expires))
