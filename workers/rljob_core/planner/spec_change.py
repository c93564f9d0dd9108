"""A spec that the user changed while the job runs, where the change restarts no coordinator: it goes into the ledger.

A changed `spec.pipeline` is in force from the next buffer that opens, and recorded before. Open buffers keep their
stamps, so nothing that is under way becomes too stale. Open are the buffers of `version … version + η` at most, where η
is the bound under which the last of them opened; the change is therefore complete after η + 1 steps.

By other fields the coordinator decides nothing, except that it follows where pools are, and how many episodes an engine
may have open. With the record, the audit can compare the spec with what user and pods have.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from rljob_core.coordinator_reads import read_by_coordinator
from rljob_core.planner.context import PlannerContext
from rljob_core.records import PipelineSet, SpecInForce
from rljob_core.spec import PipelineSpec, RLJobSpec


def spec_in_force(spec: RLJobSpec) -> SpecInForce:
    """The record of a spec, with defaults filled in."""
    return SpecInForce(_values(spec))


def on_spec_changed(context: PlannerContext, spec: RLJobSpec) -> None:
    """Record the user's newest spec if it differs from the newest one in the ledger.

    `spec.pipeline` stays as it is: `PipelineSet` records its changes, once they have their storage. A spec in which a
    field differs that the coordinator reads is not in force here: the operator replaces the coordinator, and its
    successor's claim records the spec.
    """
    if context.state.finished is not None:
        return
    # A job that is suspended has no coordinator: the next one says that it is not.
    kept = {"suspend": context.spec.suspend, "pipeline": context.spec.pipeline}
    new = spec.model_copy(update=kept)
    before, after = _values(context.spec), _values(new)
    if before == after or read_by_coordinator(before) != read_by_coordinator(after):
        return
    context.spec = new
    context.sites.meet(*new.rollout.pool_sites.values())
    context.emit(spec_in_force(new))


def _values(spec: RLJobSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)


def pipeline_set(pipeline: PipelineSpec, *, step: int = 0) -> PipelineSet:
    """The record of a pipeline, with defaults filled in, that is in force from the buffer of `step` on."""
    return PipelineSet(
        step=step,
        mode=str(pipeline.mode),
        max_staleness=pipeline.bound,
        inflight=str(pipeline.inflight),
        max_attempts=pipeline.max_attempts,
        max_resamples=pipeline.max_resamples,
        window=pipeline.window,
    )


def pipeline_of(record: PipelineSet) -> PipelineSpec:
    """The pipeline that a record describes."""
    values = asdict(record)
    return PipelineSpec.model_validate({name: values[name] for name in PipelineSpec.model_fields})


def on_pipeline_changed(context: PlannerContext, pipeline: PipelineSpec) -> None:
    """Decide by `pipeline` from now on, and record it if it differs from the newest one in the ledger."""
    context.spec = context.spec.model_copy(update={"pipeline": pipeline})
    context.pipeline_refused = ""
    record = pipeline_set(pipeline, step=context.state.buffers.next_step)
    last = context.state.pipeline
    if last is None or replace(last, step=record.step) != record:
        context.emit(record)
