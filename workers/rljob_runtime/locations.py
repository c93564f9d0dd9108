"""Where things are: URIs of the spec as local folders."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from rljob_core.config import JobConfig
from rljob_core.errors import ResourceMissing, SpecError


def local_path(uri: str, *, field: str = "") -> Path:
    """The folder that a `file://` URI or a plain path names.

    Raises:
        SpecError: another scheme, which needs a store that this release does not have.
    """
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    if parsed.scheme:
        raise SpecError(field, f"{parsed.scheme}:// is not supported yet; use file:// or a path")
    return Path(uri)


def model_folder(config: JobConfig) -> Path:
    """The folder of the model to train.

    Raises:
        NotThere: it holds no model.
    """
    path = local_path(config.spec.model.uri, field="spec.model.uri")
    if not (path / "config.json").is_file():
        raise ResourceMissing(
            "spec.model.uri", f"{path} holds no Hugging Face model (config.json is missing)"
        )
    return path
