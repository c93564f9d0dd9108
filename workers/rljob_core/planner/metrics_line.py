"""The job's metrics at one moment, as one `StepMetrics` line."""

from __future__ import annotations

from dataclasses import replace

from rljob_core.messages import StepMetrics
from rljob_core.planner.context import PlannerContext


def metrics_line(context: PlannerContext) -> StepMetrics:
    """The job's progress, queues and engines now, without statistics of a step or an evaluation."""
    queues: dict[str, int] = {}
    for sibling in context.state.siblings():
        queues[sibling.state] = queues.get(sibling.state, 0) + 1
    line = context.metrics.line(context.state, now=context.now)
    engines = context.liveness.engines.values()
    return replace(
        line,
        queues=queues,
        engines=len(engines),
        slots=sum(engine.slots for engine in engines),
        assigned=sum(min(engine.assigned, engine.slots) for engine in engines),
        pipeline=context.state.pipeline,
        pipeline_refused=context.pipeline_refused,
        room_refused=context.room.refused,
        room_wanted=context.room.lacking,
        last_version=context.last_version if context.last_version > context.spec.steps else 0,
        optimizer_reset=context.optimizer_reset,
        length_correlation=context.lengths.correlation,
        length_recall=context.lengths.recall,
        pools=context.pool_speeds.by_pool(engines, context.now),
    )
