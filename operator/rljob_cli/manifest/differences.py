"""How two manifests of a job differ, and which differences a job never accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rljob_core.spec import Immutable, RLJob, immutable_fields

# Compared in other ways: a model's folder may have moved, so its content is compared; the embedded server has no URL.
_COMPARED_OTHERWISE = {"spec.model.uri", "spec.nats.url"}
# All places are on this machine: a pool may move from one to the other when its run is resumed.
_MOVABLE = "spec.rollout.pools.site"
_POOL_MOVES = re.compile(r"spec\.rollout\.pools\.[^.]+\.site")
_MARKS = dict(immutable_fields(RLJob))
IMMUTABLE: Mapping[str, Immutable] = {path: mark for path, mark in _MARKS.items() if path != _MOVABLE}
"""The fields that `rljob patch` refuses to change, and why: those that the API server refuses to change."""
IMMUTABLE_ON_RESUME: Mapping[str, Immutable] = {
    path: mark for path, mark in IMMUTABLE.items() if path not in _COMPARED_OTHERWISE
}
"""The fields that must be the same when a run is resumed, and why. All others may differ from run to run."""


def moves(fields: Iterable[tuple[str, Any, Any]]) -> list[tuple[str, Immutable, Any]]:
    """The changes that put a pool elsewhere, as path, why it stays while the run goes on, value before.

    Args:
        fields: what `differences` says of manifests in which pools are mappings by name.
    """
    return [(path, _MARKS[_MOVABLE], before) for path, before, _ in fields if _POOL_MOVES.fullmatch(path)]


def by_name(value: Any) -> Any:
    """JSON with lists of named objects as mappings, so that a change of one pool is reported under the pool's name."""
    if isinstance(value, Mapping):
        return {key: by_name(below) for key, below in value.items()}
    if isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
        return {str(item["name"]): by_name(item) for item in value} or value
    return value


def differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """The leaves in which two JSON values differ, as path, value before, value now."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            found
            for key in keys
            for found in differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if before == now else [(path, before, now)]


def differing(values: Sequence[Any]) -> list[str]:
    """The paths at which several JSON values differ."""
    return list(dict.fromkeys(path for other in values[1:] for path, _, _ in differences(values[0], other)))


def value_in(content: Any, path: str) -> Any:
    """The value at a path of `differences`, in which keys may hold dots; None if there is none."""
    if not path:
        return content
    # The shortest key first: what a path without dots in its keys leads to is what others read.
    for key in sorted(content, key=len) if isinstance(content, Mapping) else ():
        if path == key or path.startswith(f"{key}."):
            found = value_in(content[key], path[len(key) + 1 :])
            if found is not None:
                return found
    return None


def fixed_differences(
    manifest: Mapping[str, Any], job: RLJob, fixed: Mapping[str, Immutable] = IMMUTABLE_ON_RESUME
) -> list[tuple[str, str, Any, Any]]:
    """The immutable fields of a job's manifest that `job` would change, as path, reason, value before, value now."""
    found = differences(by_name(manifest), by_name(job.model_dump(mode="json", by_alias=True)))
    return [
        (path, mark.because, before, now)
        for path, before, now in found
        for field, mark in fixed.items()
        if mark.keeps(field, path) and not mark.allows(before, now)
    ]
