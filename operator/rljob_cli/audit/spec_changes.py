"""The check of a spec that a coordinator recorded while it was at work, without a claim of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from rljob_cli.audit.evidence import Violation
from rljob_core.coordinator_reads import read_by_coordinator
from rljob_core.records import PipelineSet
from rljob_core.spec import PipelineSpec, RLJobSpec

PIPELINE_FIELDS = {
    "mode": "mode",
    "maxStaleness": "max_staleness",
    "inflight": "inflight",
    "maxAttempts": "max_attempts",
    "maxResamples": "max_resamples",
    "window": "window",
}
"""Fields of `spec.pipeline`, and of the record `PipelineSet` that holds them."""


def completed(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with defaults for fields that are left out."""
    try:
        return RLJobSpec.model_validate(spec).model_dump(mode="json", by_alias=True)
    except ValidationError:
        return dict(spec)


def unclaimed(
    message: str, spec: dict[str, Any], before: Sequence[dict[str, Any]], pipeline: PipelineSet | None
) -> Iterator[Violation]:
    """Report what a coordinator at work cannot have changed: what it reads itself, and `pipeline`.

    Args:
        message: name of the ledger's message that has the spec.
        spec: the new spec.
        before: the specs that the ledger had before.
        pipeline: the newest record of `spec.pipeline`, which a spec without a claim repeats.
    """
    if not before:
        yield Violation((message,), "has a spec, but no coordinator has claimed with one")
        return
    was, now = (read_by_coordinator(completed(one)) for one in (before[-1], spec))
    for path in was:
        if was[path] != now[path]:
            text = f"changes spec.{path}, which only another coordinator can, but none took over there"
            yield Violation((message,), text)
    if pipeline is not None:
        for field in _unlike(completed(spec).get("pipeline", {}), pipeline):
            yield Violation((message,), f"has another spec.pipeline.{field} than was in force")


def _unlike(values: dict[str, Any], record: PipelineSet) -> Iterator[str]:
    """The fields of `spec.pipeline` that the record has with another value."""
    said = {field: getattr(record, name) for field, name in PIPELINE_FIELDS.items()}
    try:
        pipeline = PipelineSpec.model_validate(values)
    except ValidationError:
        yield "mode"
        return
    found = {**pipeline.model_dump(mode="json", by_alias=True), "maxStaleness": pipeline.bound}
    yield from (field for field, value in said.items() if found[field] != value)
