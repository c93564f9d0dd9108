"""What many child manifests have: labels, the reference to their owner, digests; ConfigMaps and NetworkPolicies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def config_map(metadata: Manifest, data: Mapping[str, str]) -> Manifest:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def policy_manifest(
    metadata: Manifest, pods: Manifest, *, ingress: Sequence[Manifest] | None = (), egress: Sequence[Manifest]
) -> Manifest:
    """A NetworkPolicy.

    Args:
        metadata: of the policy.
        pods: which pods it is for, as a label selector.
        ingress: the rules for connections to them; none: nobody connects; None: the policy says nothing of these.
        egress: the rules for connections from them.
    """
    types = ["Egress"] if ingress is None else ["Ingress", "Egress"]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": pods,
            "policyTypes": types,
            **({"ingress": list(ingress)} if ingress else {}),
            "egress": list(egress),
        },
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
