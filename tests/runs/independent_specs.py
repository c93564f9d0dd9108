"""What must be true of a ledger's specs, for the independent auditor: written from docs/design/streams.md alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

COORDINATORS = (
    "steps", "model", "data", "evaluation", "reward.functions", "algorithm", "rollout.engine", "rollout.environment",
    "rollout.lengthPredictor", "rollout.progressTokens", "rollout.sampling", "trainer.checkpoint",
    "trainer.microBatchTokens", "weights", "nats.url", "nats.credentialsSecret",
)  # fmt: skip
PIPELINE = ("mode", "inflight", "maxAttempts", "maxResamples", "window")


def changed_without_a_claim(before: Json | None, spec: Json, pipeline: Json) -> Iterator[str]:
    """Say which fields of a spec cannot have changed where it stands.

    Args:
        before: the newest spec before it; None if there is none.
        pipeline: the newest record of that kind.
    """
    if before is None:
        yield "a spec stands before any claim with one"
        return
    for path in COORDINATORS:
        if _at(before, path) != _at(spec, path):
            yield f"spec.{path} changed without a claim"
    for name in PIPELINE:
        field = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
        if pipeline and spec["pipeline"][name] != pipeline[field]:
            yield f"a spec has another pipeline.{name} than was in force"
    stale = spec["pipeline"]["maxStaleness"]
    if pipeline and stale is not None and stale != pipeline["max_staleness"]:
        yield "a spec has another pipeline.maxStaleness than was in force"


def _at(spec: Any, path: str) -> Any:
    for name in path.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec
