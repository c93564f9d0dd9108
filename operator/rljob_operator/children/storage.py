"""PURE. `pvc://claim/folder`: a PersistentVolumeClaim of the job's namespace, mounted into its workers."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_operator.cluster.port import Manifest

_SCHEME = "pvc://"
_ROOT = "/mnt/claims"


def seen_by_worker(uri: str) -> str:
    """The URI as a worker reads it: a path below the mounted claim; another scheme as it is."""
    if not uri.startswith(_SCHEME):
        return uri
    claim, _, folder = uri.removeprefix(_SCHEME).partition("/")
    return f"{_ROOT}/{claim}/{folder}".rstrip("/")


def claims(uris: Iterable[str]) -> list[str]:
    """Names of the claims that URIs refer to, each once."""
    found = (uri.removeprefix(_SCHEME).partition("/")[0] for uri in uris if uri.startswith(_SCHEME))
    return sorted(set(found))


def volume(claim: str) -> Manifest:
    """A pod's volume for a claim."""
    return {"name": _volume_name(claim), "persistentVolumeClaim": {"claimName": claim}}


def mount(claim: str) -> Manifest:
    """A container's mount of it."""
    return {"name": _volume_name(claim), "mountPath": f"{_ROOT}/{claim}"}


def _volume_name(claim: str) -> str:
    return f"claim-{claim}"
