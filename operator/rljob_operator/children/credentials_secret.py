"""The Secrets with the NATS credentials of a job's roles."""

from __future__ import annotations

import base64
from hashlib import sha256

from rljob_core.spec import RLJob
from rljob_operator.children.metadata import child_metadata
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import CREDENTIALS_FILE, Issuer, job_credentials
from rljob_operator.nats.permissions import Holder


def secret_name(job: RLJob, holder: Holder, issuer: Issuer) -> str:
    """Name of the Secret with a role's credentials; it contains their hash, so that a Secret never changes."""
    text = _credentials(job, holder, issuer)
    return f"{job.metadata.name}-nats-{holder}-{sha256(text.encode()).hexdigest()[:10]}"


def credentials_secret(job: RLJob, holder: Holder, issuer: Issuer) -> Manifest:
    """The Secret that holds a role's credentials."""
    text = _credentials(job, holder, issuer)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(job, secret_name(job, holder, issuer), None),
        "type": "Opaque",
        "immutable": True,
        "data": {CREDENTIALS_FILE: base64.b64encode(text.encode()).decode()},
    }


def _credentials(job: RLJob, holder: Holder, issuer: Issuer) -> str:
    metadata = job.metadata
    return job_credentials(
        issuer,
        holder,
        namespace=metadata.namespace,
        job=metadata.name,
        uid=metadata.uid or "",
        generation=job.spec.nats.credentials_generation,
    )
