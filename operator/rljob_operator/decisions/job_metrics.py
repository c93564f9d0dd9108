"""A job's progress, as its workers report it to those who reconcile it."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.autoscale import TrainingLoad
from rljob_core.messages import StepMetrics
from rljob_core.spec import PipelineStatus


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """A job's progress as its workers report it.

    Attributes:
        trainer_waiting: share of its time for which the trainer waited for trajectories, over the last steps.
        engines_idle: share of the engines' slots that had nothing to do, over the last steps.
        pipeline: the pipeline that the coordinator says is in force.
        stream_bytes: that the trajectory stream would have to hold, if the coordinator may not enlarge it itself.
        optimizer_reset: why the optimizer continued with an older or a fresh state; empty if it did not.
        samples_lost: why a reward worker could not keep samples; empty if all could.
        sites_away: sites whose engines the coordinator cannot reach.
        sites_held: sites that get no new work until the hub has taken what is stored there.
        attempt: the trainer's, which may be one before the status's.
        step_attempt: the trainer's that committed the newest step; 0 if none has since this operator started.
        load: how fast the trainer and the engines are.
    """

    step: int = 0
    policy_version: int = 0
    reward_mean: float | None = None
    staleness_max: int | None = None
    staleness_mean: float | None = None
    tokens_per_second: float | None = None
    writer_epoch: int = 0
    trainer_waiting: float | None = None
    engines_idle: float | None = None
    pipeline: PipelineStatus | None = None
    stream_bytes: int = 0
    optimizer_reset: str = ""
    samples_lost: str = ""
    sites_away: tuple[str, ...] = ()
    sites_held: tuple[str, ...] = ()
    attempt: int = 0
    step_attempt: int = 0
    load: TrainingLoad | None = None


def pipeline_in_force(line: StepMetrics) -> PipelineStatus | None:
    """The pipeline that a line of the coordinator's metrics reports; None if the line has none."""
    reported = line.pipeline
    if reported is None:
        return None
    return PipelineStatus(
        mode=reported.mode,
        max_staleness=reported.max_staleness,
        inflight=reported.inflight,
        from_step=reported.step,
        message=line.pipeline_refused,
    )
