"""Resolves URIs of the specification to local folders."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from rljob_core.config import JobConfig
from rljob_core.errors import ResourceMissing, SpecError


def local_path(uri: str, *, field: str = "") -> Path:
    """Return the folder that a `file://` URI or a plain path names.

    Args:
        uri: the URI or path.
        field: the manifest's field that gives it, for errors.

    Raises:
        SpecError: the URI has another scheme, or is none.
    """
    try:
        parsed = urlparse(uri)
    except ValueError as error:
        raise SpecError(field, f"{uri[:100]!r} is no URI ({error}): write a path or file://") from error
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    if parsed.scheme:
        raise SpecError(field, f"{parsed.scheme}:// is not supported here: write a path or file://")
    return Path(uri)


def model_folder(config: JobConfig) -> Path:
    """Return the folder of the model to train.

    Raises:
        ResourceMissing: the folder holds no model.
    """
    path = local_path(config.spec.model.uri, field="spec.model.uri")
    if not (path / "config.json").is_file():
        raise ResourceMissing(
            "spec.model.uri", f"{path} holds no Hugging Face model (config.json is missing)"
        )
    return path
