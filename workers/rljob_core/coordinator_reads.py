"""The fields of the spec that a coordinator reads.

A change of one of them restarts the coordinator, whose successor records the new spec with its claim. A running
coordinator follows `spec.pipeline`, with records of its own, and records every other change when it sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_core.spec import CHANGEABLE_OF_ENVIRONMENT

COORDINATOR_READS = (
    "steps", "model", "data", "evaluation", "reward.functions", "reward.weights", "reward.perGroup",
    "algorithm",
    "rollout.engine", "rollout.environment", "rollout.lengthPredictor", "rollout.progressTokens",
    "rollout.sampling", "trainer.checkpoint", "trainer.microBatchTokens", "weights",
    "nats.url", "nats.credentialsSecret",
)  # fmt: skip
"""Dotted paths below `spec`."""


def read_by_coordinator(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `COORDINATOR_READS` in a spec with the API's field names; None for what it does not have."""
    return {path: value_at(spec, path) for path in COORDINATOR_READS}


def value_at(spec: Mapping[str, Any], path: str) -> Any:
    """The value at a path of the spec, None if there is none; of an environment, what its episodes depend on."""
    value: Any = spec
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if path == "rollout.environment" and isinstance(value, Mapping):
        return {name: below for name, below in value.items() if name not in CHANGEABLE_OF_ENVIRONMENT}
    return value
