"""A changed `spec.pipeline` while the job runs: it is in force from the next buffer that opens.

The change is recorded before a buffer opens under it. Open buffers keep their stamps, so nothing that is under way
becomes too stale. Open are the buffers of `version … version + η` at most, where η is the bound under which the last
of them opened; the change is therefore complete after η + 1 steps.
"""

from __future__ import annotations

from dataclasses import replace

from rljob_core.planner.context import PlannerContext
from rljob_core.records import PipelineSet
from rljob_core.spec import PipelineSpec


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
    values = {
        "mode": record.mode,
        "maxStaleness": record.max_staleness,
        "inflight": record.inflight,
        "maxAttempts": record.max_attempts,
        "maxResamples": record.max_resamples,
        "window": record.window,
    }
    return PipelineSpec.model_validate(values)


def on_pipeline_changed(context: PlannerContext, pipeline: PipelineSpec) -> None:
    """Decide by `pipeline` from now on, and record it if it differs from the newest one in the ledger."""
    context.spec = context.spec.model_copy(update={"pipeline": pipeline})
    context.pipeline_refused = ""
    record = pipeline_set(pipeline, step=context.state.buffers.next_step)
    last = context.state.pipeline
    if last is None or replace(last, step=record.step) != record:
        context.emit(record)
