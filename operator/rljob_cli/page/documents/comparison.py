"""In what the manifests of several runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_cli.manifest.differences import differences


def manifest_rows(manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fields in which manifests differ, with the value in each; pools are compared by name.

    Args:
        manifests: RLJobs as JSON.
    """
    if len(manifests) < 2:
        return []
    specs = [_by_name(manifest.get("spec", {})) for manifest in manifests]
    paths = {path for other in specs[1:] for path, _, _ in differences(specs[0], other)}
    rows = []
    for path in sorted(paths):
        values = [_at(spec, path) for spec in specs]
        rows.append({"path": f"spec.{path}", "values": values})
    return rows


def _by_name(value: Any) -> Any:
    """Lists of named things as mappings by name, so that the same things are compared."""
    if isinstance(value, Mapping):
        return {key: _by_name(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(v, Mapping) and "name" in v for v in value):
        return {str(v["name"]): _by_name({k: i for k, i in v.items() if k != "name"}) for v in value}
    return value


def _at(value: Any, path: str) -> Any:
    """The value at a path; keys may hold dots."""
    if not path:
        return value
    if not isinstance(value, Mapping):
        return None
    for key in value:
        if path == key or path.startswith(f"{key}."):
            return _at(value[key], path[len(key) + 1 :])
    return None
