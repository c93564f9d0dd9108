"""URIs of the form `pvc://claim/folder`: a PersistentVolumeClaim of the job's namespace, mounted into its workers."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_operator.cluster.port import Manifest

_SCHEME = "pvc://"
_ROOT = "/mnt/claims"


def path_in_pod(uri: str) -> str:
    """The path below the mounted claim under which a worker finds a `pvc://` URI; other URIs unchanged."""
    if not uri.startswith(_SCHEME):
        return uri
    claim, _, folder = uri.removeprefix(_SCHEME).partition("/")
    return f"{_ROOT}/{claim}/{folder}".rstrip("/")


def claims(uris: Iterable[str]) -> list[str]:
    """Names of the claims that the `pvc://` URIs refer to, sorted, without duplicates."""
    found = (uri.removeprefix(_SCHEME).partition("/")[0] for uri in uris if uri.startswith(_SCHEME))
    return sorted(set(found))


def volume(claim: str) -> Manifest:
    """The pod volume that provides a claim."""
    return {"name": _volume_name(claim), "persistentVolumeClaim": {"claimName": claim}}


def mount(claim: str, *, writable: bool) -> Manifest:
    """The mount of a claim's volume in a container."""
    mounted: Manifest = {"name": _volume_name(claim), "mountPath": mount_path(claim)}
    return mounted if writable else {**mounted, "readOnly": True}


def mount_path(claim: str) -> str:
    """The folder of a claim in a container."""
    return f"{_ROOT}/{claim}"


def _volume_name(claim: str) -> str:
    return f"claim-{claim}"
