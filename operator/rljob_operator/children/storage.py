"""URIs of the form `pvc://claim/folder`: a PersistentVolumeClaim of the job's namespace, mounted into its workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rljob_core.errors import SpecError
from rljob_operator.cluster.port import Manifest

OBJECT_STORES = ("s3://", "gs://")
TRAINER_LOG, SAMPLES = "trainer-log", "samples"
"""Folders beside checkpoints."""
_SCHEME = "pvc://"
_ROOT = "/mnt/claims"
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9]{0,55}[a-z0-9])?", re.ASCII)
"""Names of claims whose volumes, `claim-<name>`, have a name that Kubernetes allows."""


def beside(checkpoints: str, name: str, otherwise: str) -> str:
    """Where what belongs to checkpoints is: beside them, if they are in an object store or nothing else is known.

    Args:
        checkpoints: their folder or URI.
        name: of the folder.
        otherwise: another place; empty for none.
    """
    return f"{checkpoints}/{name}" if not otherwise or checkpoints.startswith(OBJECT_STORES) else otherwise


def path_in_pod(uri: str) -> str:
    """The path below the mounted claim under which a worker finds a `pvc://` URI; other URIs unchanged."""
    if not uri.startswith(_SCHEME):
        return uri
    claim, _, folder = uri.removeprefix(_SCHEME).partition("/")
    return f"{_ROOT}/{claim}/{folder}".rstrip("/")


def paths_in_pod(options: Any) -> Any:
    """Free-form options with `pvc://` URIs replaced by paths below the mounted claims."""
    if isinstance(options, str):
        return path_in_pod(options)
    if isinstance(options, dict):
        return {name: paths_in_pod(value) for name, value in options.items()}
    return [paths_in_pod(value) for value in options] if isinstance(options, list) else options


def texts(options: Any) -> Iterator[str]:
    """All strings in free-form options, keys left out."""
    if isinstance(options, str):
        yield options
    elif isinstance(options, dict):
        yield from texts(tuple(options.values()))
    elif isinstance(options, list | tuple):
        for part in options:
            yield from texts(part)


def claims(uris: Iterable[str]) -> list[str]:
    """Names of the claims that the `pvc://` URIs refer to, sorted, without duplicates."""
    found = (uri.removeprefix(_SCHEME).partition("/")[0] for uri in uris if uri.startswith(_SCHEME))
    return sorted(set(found))


def check_claims(uris: Iterable[str], field: str) -> None:
    """Whether a pod can have a volume for each claim that the `pvc://` URIs refer to.

    Raises:
        SpecError: a URI names no claim, or one of a name that no volume can have.
    """
    for claim in claims(uris):
        if not _CLAIM.fullmatch(claim):
            raise SpecError(
                field,
                f"{_SCHEME}{claim} names no PersistentVolumeClaim that can be mounted: write {_SCHEME}claim/folder, "
                "the claim's name in lower case letters, digits and dashes, of at most 57 characters",
            )


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


def holds(claim: str, path: str) -> bool:
    """Whether a path in a container is below a claim's folder."""
    return f"{path}/".startswith(f"{mount_path(claim)}/")


def _volume_name(claim: str) -> str:
    return f"claim-{claim}"
