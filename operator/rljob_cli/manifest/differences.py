"""How two manifests of a job differ, and which differences a job never accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_core.spec import Immutable, RLJob, immutable_fields

# Compared in other ways: a model's folder may have moved, so its content is compared; the embedded server has no URL.
_COMPARED_OTHERWISE = {"spec.model.uri", "spec.nats.url"}
# Without meaning here: all pools are on this machine.
_MEANINGLESS = {"spec.rollout.pools.datacenter"}
IMMUTABLE: Mapping[str, Immutable] = {
    path: mark for path, mark in immutable_fields(RLJob) if path not in _MEANINGLESS
}
"""The fields that `rljob patch` refuses to change, and why: those that the API server refuses to change."""
IMMUTABLE_ON_RESUME: Mapping[str, Immutable] = {
    path: mark for path, mark in IMMUTABLE.items() if path not in _COMPARED_OTHERWISE
}
"""The fields that must be the same when a run is resumed, and why. All others may differ from run to run."""


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


def fixed_differences(
    manifest: Mapping[str, Any], job: RLJob, fixed: Mapping[str, Immutable] = IMMUTABLE_ON_RESUME
) -> list[tuple[str, str, Any, Any]]:
    """The immutable fields of a job's manifest that `job` would change, as path, reason, value before, value now."""
    found = differences(manifest, job.model_dump(mode="json", by_alias=True))
    return [
        (path, mark.because, before, now)
        for path, before, now in found
        for field, mark in fixed.items()
        if (path == field or path.startswith(f"{field}.")) and not mark.allows(before, now)
    ]
