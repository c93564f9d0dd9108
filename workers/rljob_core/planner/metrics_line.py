"""The job's metrics at one moment, as one `StepMetrics` line."""

from __future__ import annotations

from dataclasses import replace

from rljob_core.actions import PublishMetrics
from rljob_core.messages import SamplesLost, StepMetrics
from rljob_core.planner.context import PlannerContext

_SAMPLES_LOST = 300.0
"""Seconds after which what a reward worker said of its samples is forgotten: it repeats it, while it lives."""
_WORKERS = 64
"""Reward workers of which it is kept what they said: one that invents names costs no more memory."""


def note_samples_lost(context: PlannerContext, event: SamplesLost) -> None:
    """Keep what a reward worker says about its samples, or that all are kept again; of too many, the newest."""
    said = {
        worker: (at, words) for worker, (at, words) in context.samples_lost.items() if _holds(context, at)
    }
    said.pop(event.worker, None)
    if event.message:
        said[event.worker] = context.now, event.sentence
    context.samples_lost = dict(list(said.items())[-_WORKERS:])


def _holds(context: PlannerContext, at: float) -> bool:
    return context.now - at < _SAMPLES_LOST


def samples_lost(context: PlannerContext) -> str:
    """What a reward worker says about samples that it cannot keep, the first by name; empty if all can."""
    said = {worker: words for worker, (at, words) in context.samples_lost.items() if _holds(context, at)}
    return said[min(said)] if said else ""


def publish(context: PlannerContext) -> None:
    """Publish the job's metrics as they are now."""
    context.act(PublishMetrics(metrics_line(context)))


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
        assigned=sum(engine.slots_taken for engine in engines),
        pipeline=context.state.pipeline,
        pipeline_refused=context.pipeline_refused,
        room_refused=context.room.refused,
        room_wanted=context.room.lacking,
        last_version=context.last_version if context.last_version > context.spec.steps else 0,
        optimizer_reset=context.optimizer_reset,
        samples_lost=samples_lost(context),
        length_correlation=context.lengths.correlation,
        length_recall=context.lengths.recall,
        sites_away=context.sites.away,
        sites_held=context.transfers.held_back,
        pools=context.pool_speeds.by_pool(engines, context.now),
    )
