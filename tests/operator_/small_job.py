"""The small RLJob that the operator's tests vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rljob_core.spec import RLJob

MakeJob = Callable[..., RLJob]


def make_small_job(**changes: Any) -> RLJob:
    """The small job with changes: `make_small_job(trainer__numNodes=2)` sets spec.trainer.numNodes."""
    spec = {
        "steps": 3,
        "model": {"uri": "/model"},
        "data": {"dataset": "chain_sum"},
        "rollout": {"pools": [{"name": "cpu", "replicas": 2}]},
    }
    spec = _changed(spec, changes)
    if any(pool.get("site") for pool in spec["rollout"]["pools"]):
        spec = {"weights": {"transport": "Nats"}, **spec}  # the only transport for sites
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "chain-sum", "uid": "u-1", "generation": 1},
        "spec": spec,
    }
    return RLJob.model_validate(manifest)


def _changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for path, value in changes.items():
        field, _, rest = path.partition("__")
        merged[field] = _changed(merged.get(field, {}), {rest: value}) if rest else value
    return merged
