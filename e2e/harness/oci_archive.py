"""Packs a folder as a container image of one layer, in an archive that `ctr images import` and `docker load` take.

Follows the OCI image layout specification: blobs by digest, and an index that names the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image."


def write_archive(
    path: Path,
    *,
    name: str,
    root: Path,
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
) -> None:
    """Pack `root` as the image `name` into `path`, which appears only when it is whole.

    Args:
        path: of the archive.
        name: with registry and tag, as pods name it.
        root: becomes the image's /; owners and modes are kept.
        command: what a container runs unless its pod says otherwise.
        environment: of containers.
        leave_out: `tar --exclude` patterns below the root, such as `./proc/*`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        layer = Path(scratch) / "layer.tar"
        excluded = [f"--exclude={pattern}" for pattern in leave_out]
        subprocess.run(
            ["tar", "--sort=name", "--numeric-owner", *excluded, "-C", str(root), "-cf", str(layer), "."],
            check=True,
        )
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        blobs = _Blobs()
        config = blobs.add("config.v1+json", _config(digest, command, environment or {}))
        layers = [_descriptor("layer.v1.tar", digest, layer.stat().st_size)]
        manifest = blobs.add(
            "manifest.v1+json", {**_document("manifest"), "config": config, "layers": layers}
        )
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        index = {**_document("index"), "manifests": [{**manifest, "annotations": names}]}
        whole = Path(scratch) / "archive.tar"
        with tarfile.open(whole, "w") as archive:
            _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(archive, "index.json", _json(index))
            for blob, content in blobs.contents.items():
                _add(archive, f"blobs/sha256/{blob}", content)
            archive.add(layer, f"blobs/sha256/{digest}")
        whole.replace(path)


class _Blobs:
    """JSON documents by their digest."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def add(self, kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
        content = _json(document)
        digest = hashlib.sha256(content).hexdigest()
        self.contents[digest] = content
        return _descriptor(kind, digest, len(content))


def _config(layer: str, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    machine = platform.machine()
    return {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": [f"{key}={value}" for key, value in environment.items()]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _document(kind: str) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": f"{_TYPE}{kind}.v1+json"}


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_TYPE}{kind}", "digest": f"sha256:{digest}", "size": size}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
