"""Metadata that every child manifest has: labels, the reference to its owner, digests."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from rljob_core.spec import API_VERSION, RLJob
from rljob_operator import names
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role


def child_metadata(job: RLJob, name: str, role: Role | None, part: str | None = None) -> Manifest:
    """Metadata of a child of an RLJob; `part` as for `names.child`."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": names.labels(job.metadata.name, role, part),
        "ownerReferences": [owner_reference("RLJob", job.metadata.name, job.metadata.uid or "")],
    }


def pool_child_metadata(pool: Manifest, name: str, *, uid: str) -> Manifest:
    """Metadata of a child of the RolloutPool with that uid."""
    metadata = pool["metadata"]
    return {
        "namespace": metadata["namespace"],
        "labels": metadata["labels"],
        "ownerReferences": [owner_reference("RolloutPool", metadata["name"], uid)],
        "name": name,
    }


def kept(manifest: Manifest) -> Manifest:
    """A child that stays when the job is suspended or has ended."""
    metadata = manifest["metadata"]
    return {
        **manifest,
        "metadata": {**metadata, "labels": {**metadata["labels"], names.LABEL_KEPT: "true"}},
    }


def with_digest(manifest: Manifest) -> Manifest:
    """The manifest with its digest as an annotation, by which `plan` detects that the wanted manifest has changed."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.APPLIED_HASH: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def owner_reference(kind: str, name: str, uid: str) -> Manifest:
    """The owner reference by which Kubernetes deletes a child after its owner.

    `blockOwnerDeletion` is not set: the operator's finalizer blocks the deletion already, and some distributions
    (OpenShift for one) allow the field only to those who may change the owner's finalizers.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def digest(value: Any) -> str:
    """Short digest of a JSON value; the order of its fields does not matter."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
