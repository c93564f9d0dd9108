"""The conditions that follow from a job's metrics: which side of it waits, and which sites get no new work.

`TrainerStarved` and `RolloutStarved` advise on sizes and report no error. In Synchronous mode one side always waits for
the other, and the conditions say so. `SitesHeldBack` is back-pressure, which acts before a site's outbox is full:
engines there would stand still with results that they cannot store.
"""

from __future__ import annotations

from typing import Final

from rljob_operator.decisions.conditions import ConditionKind, ConditionValue
from rljob_operator.decisions.job_metrics import JobMetrics

HELD_BACK: Final = "SitesHeldBack"
_RISES, _FALLS = 0.5, 0.4  # apart, so that the condition of a job near them does not flip


def starvation(metrics: JobMetrics, held: frozenset[str]) -> dict[ConditionKind, ConditionValue]:
    """The values of `TrainerStarved` and `RolloutStarved`; a condition whose metric is unknown is left out.

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


def sites_held_back(metrics: JobMetrics) -> ConditionValue:
    """The value of `SitesHeldBack`; a site that cannot be reached counts as well."""
    away = metrics.sites_away
    full = tuple(site for site in metrics.sites_held if site not in away)
    said = []
    if away:
        said.append(f"{_named(away)} cannot be reached")
    if full:
        said.append(
            f"the link of {_named(full)} carries less than the engines there make: results wait in its outbox"
        )
    if not said:
        return False, "SitesTakeWork", ""
    return True, "SiteAway" if away else "OutboxFilling", f"{'; '.join(said)}; no new work is sent there"


def _named(sites: tuple[str, ...]) -> str:
    """The first few: a condition is read by people."""
    more = len(sites) - 5
    return ", ".join(sites[:5]) + (f" and {more} more" if more > 0 else "")
