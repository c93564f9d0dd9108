"""Whether what a reward worker says of a trajectory can be a score.

Reward workers run users' code, and check scores as they enter. The coordinator does not rely on it: a number that is
none would end it in the arithmetic of a group, and a long text would fill the ledger.
"""

from __future__ import annotations

from rljob_core.failures import Failure, Reason
from rljob_core.messages import RewardResult
from rljob_core.planner.payload_checks import LONGEST_DIGEST
from rljob_core.ports import LARGEST_SCORE
from rljob_core.spec import TRUNCATION, RLJobSpec

OUT_OF_RANGE, INVALID = Reason.REWARD_OUT_OF_RANGE, Reason.REWARD_INVALID
"""Reasons: a number that no score may be; a result that no reward worker of this job writes."""


def failure_of(result: RewardResult, spec: RLJobSpec) -> Failure | None:
    """The failure of the attempt that was scored; None if the score counts.

    Args:
        result: as it was read.
        spec: the job's.
    """
    if result.failure is not None:
        return result.failure
    penalty = spec.algorithm.truncation_penalty if spec.algorithm.truncated == "Penalise" else 0.0
    if not abs(result.reward) <= spec.reward.largest * LARGEST_SCORE + penalty:
        return Failure(OUT_OF_RANGE, f"a reward worker sent the score {result.reward:g}")
    if unknown := result.parts.keys() - {*spec.reward.functions, TRUNCATION}:
        return Failure(
            INVALID,
            f"a reward worker sent parts of a function that the job does not have: {min(unknown)[:64]}",
        )
    if len(result.digest) > LONGEST_DIGEST:
        return Failure(INVALID, f"a reward worker sent a digest of {len(result.digest)} characters")
    for name, score in result.parts.items():
        if not abs(score) <= LARGEST_SCORE:
            return Failure(OUT_OF_RANGE, f"a reward worker sent the score {score:g} of {name}")
    return None
