"""The conditions `TrainerStarved` and `RolloutStarved`: which side of a job waits for the other most of its time.

They advise on sizes and report no error. In Synchronous mode one side always waits, and the conditions say so.
"""

from __future__ import annotations

from rljob_operator.decisions.conditions import ConditionKind, ConditionValue
from rljob_operator.decisions.job_metrics import JobMetrics

_RISES, _FALLS = 0.5, 0.4  # apart, so that the condition of a job near them does not flip


def starvation(metrics: JobMetrics, held: frozenset[str]) -> dict[ConditionKind, ConditionValue]:
    """The values of both conditions; a condition whose metric is unknown is left out.

    Args:
        metrics: the job's newest metrics.
        held: types of the conditions that are true now.
    """
    found: dict[ConditionKind, ConditionValue] = {}
    if metrics.trainer_waiting is not None:
        found["TrainerStarved"] = (
            (True, "WaitsForTrajectories", _TRAINER)
            if _above(metrics.trainer_waiting, "TrainerStarved" in held)
            else (False, "TrainerBusy", "")
        )
    if metrics.engines_idle is not None:
        found["RolloutStarved"] = (
            (True, "WaitsForTrainer", _ROLLOUT)
            if _above(metrics.engines_idle, "RolloutStarved" in held)
            else (False, "EnginesBusy", "")
        )
    return found


def _above(share: float, held: bool) -> bool:
    return share > (_FALLS if held else _RISES)


_TRAINER = (
    "the trainer waits for trajectories most of its time: add engines to spec.rollout.pools, or let rollout run ahead "
    "with spec.pipeline"
)
_ROLLOUT = (
    "engines have nothing to do most of their time, as they may not run further ahead: take engines out of "
    "spec.rollout.pools, speed the trainer up, or raise spec.pipeline.maxStaleness"
)
