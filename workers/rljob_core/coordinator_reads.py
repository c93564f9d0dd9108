"""The fields of the spec that a coordinator reads.

A change of one of them restarts the coordinator, whose successor records the new spec with its claim. A running
coordinator follows `spec.pipeline`, with records of its own, and records every other change when it sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COORDINATOR_READS = (
    "steps", "model", "data", "evaluation", "reward.functions", "algorithm",
    "rollout.engine", "rollout.environment", "rollout.lengthPredictor", "rollout.progressTokens",
    "rollout.sampling", "trainer.checkpoint", "trainer.microBatchTokens", "weights",
    "nats.url", "nats.credentialsSecret", "trackers",
)  # fmt: skip
"""Dotted paths below `spec`."""


def read_by_coordinator(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `COORDINATOR_READS` in a spec with the API's field names; None for what it does not have."""
    return {path: _at(spec, path) for path in COORDINATOR_READS}


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
