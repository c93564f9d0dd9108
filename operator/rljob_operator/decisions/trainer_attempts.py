"""Decides which attempt of the trainer gang should run, and which ended attempts count as failures.

The only stored state is `trainerAttempt`, `trainerNodes` and `failures` in the status, written before anything is done:

* No Job and no pod of any attempt exists: the next attempt starts. Its number is one higher even if the last attempt
  was never created (or was deleted, or suspended), because the number is a fencing token and must not be used twice.
  A job that was restored from a backup continues after the attempts that its metrics report. If these are not known any
  more, its coordinator fences the attempts that are too low, one after the other.
* The Job runs: it stays, unless what it was rendered from has changed, or another number of nodes is due
  (`trainer_size`); then it is deleted, and not counted.
* The Job failed: it counts if one of its pods crashed. It does not count if pods were evicted or deleted, by a person
  or with their node (which leaves no pod to read), if they were fenced, or if something outside was missing. After
  the back-off the Job is deleted, which leads to the first case. If `backoffLimit` is exceeded, or the user has to
  change something, the job fails.

`failures` is not incremented but computed as the Job's annotation plus the Job's outcome, so that reading a failed Job
twice counts it once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rljob_core import worker_protocol
from rljob_core.failures import Failure, Reason
from rljob_operator.backoff import Backoff
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.decisions.conditions import ConditionValue
from rljob_operator.decisions.gang_scheduling import asks_for_another
from rljob_operator.decisions.model_downloads import model_ready
from rljob_operator.decisions.observe import Gang, GangState, Observed
from rljob_operator.decisions.pods import PodExit
from rljob_operator.decisions.trainer_size import all_nodes, decide_size, initial_nodes
from rljob_operator.names import Role

# Each look for what is missing costs the start of an attempt.
_MISSING_SECONDS = 10.0
# The restored metrics say which attempt is the newest, and the restoring user writes them.
_MOST_RESTORED = 1_000_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """The decision about the trainer's attempts.

    Attributes:
        number: number of the current attempt.
        nodes: of its gang; of the next one, if its Job should not exist.
        failures: number of attempts that failed and count, this one included.
        keep: whether the Job of this attempt should exist.
        reason, message: why, in CamelCase and for people.
        complete: whether training is finished.
        failure: why the whole job fails; None if it does not.
        retry_at: when to decide again; None if an event will come first.
        reduced: what the condition `TrainerReduced` says, if the next attempt has another number of nodes.
    """

    number: int
    nodes: int
    failures: int
    keep: bool
    reason: str
    message: str = ""
    complete: bool = False
    failure: Failure | None = None
    retry_at: datetime | None = None
    reduced: ConditionValue | None = None


def decide(observed: Observed, resolved: ResolvedJob, *, wanted_hash: str, backoff: Backoff) -> Attempt:
    """The current attempt, and whether its Job stays.

    Args:
        observed: what is known of the job.
        resolved: the job with its present spec.
        wanted_hash: `trainer_gang.trainer_hash` of it.
        backoff: delays between attempts.
    """
    status, trainer = observed.status, observed.job.spec.trainer
    gang = max(observed.gangs, key=lambda gang: gang.attempt, default=None)
    if gang is None:
        nodes = initial_nodes(observed)
        if any(pod.attempt is not None for pod in observed.pods):
            return Attempt(
                status.trainer_attempt, nodes, status.failures, keep=False, reason="TrainerStopping"
            )
        if "model" in resolved.unresolved or (resolved.unresolved and not observed.has_run):
            why = model_ready(observed)
            reason, message = ("ModelNotReady", why[2]) if why is not None else ("TrainerStarting", "")
            return Attempt(status.trainer_attempt, nodes, status.failures, False, reason, message)
        newest = status.trainer_attempt or _restored(observed)
        return Attempt(newest + 1, nodes, status.failures, keep=True, reason="TrainerStarting")
    current = Attempt(gang.attempt, gang.nodes, gang.failures, keep=True, reason="TrainerRunning")
    if gang.terminating:
        failures, nodes = max(status.failures, gang.failures), initial_nodes(observed)
        return replace(current, nodes=nodes, failures=failures, keep=False, reason="TrainerStopping")
    if gang.state is GangState.COMPLETE:
        return replace(current, reason="TrainingComplete", complete=True)
    if gang.state is GangState.FAILED:
        return _after_failure(observed, gang, backoff)
    changed = gang.config_hash != wanted_hash or asks_for_another(observed, gang)
    if changed or gang.nodes < trainer.least_nodes:
        return replace(
            current,
            nodes=trainer.num_nodes,
            keep=False,
            reason="TrainerConfigChanged",
            reduced=all_nodes(observed, gang),
        )
    patience = timedelta(seconds=resolved.defaults.gang_seconds)
    size = decide_size(observed, gang, patience=patience)
    if size.reduced is None:
        return replace(current, retry_at=size.retry_at)
    return replace(
        current,
        nodes=size.nodes,
        keep=False,
        reason="TrainerResizing",
        message=size.reduced[2],
        reduced=size.reduced,
    )


def _restored(observed: Observed) -> int:
    """The newest attempt of the job that was restored as one that has not run yet; 0 if none was."""
    return 0 if observed.metrics is None else min(observed.metrics.attempt, _MOST_RESTORED)


def _after_failure(observed: Observed, gang: Gang, backoff: Backoff) -> Attempt:
    pods = [pod for pod in observed.pods if pod.attempt == gang.attempt]
    exits = [pod.exit for pod in pods if pod.exit is not None]
    for end in exits:
        if end.fatal is not None:
            return _failed(gang, gang.failures, end.fatal.said_by(Role.TRAINER))
    missing = next((end.unavailable for end in exits if end.unavailable is not None), None)
    taken = len(pods) < gang.nodes or any(p.evicted or p.terminating for p in pods)
    crashed = any(end.code not in {0, worker_protocol.EXIT_STOPPED} and not end.fenced for end in exits)
    counts = crashed and not taken and missing is None and not any(end.fenced for end in exits)
    failures = gang.failures + (1 if counts else 0)
    if observed.status.trainer_attempt == gang.attempt:
        failures = max(
            failures, observed.status.failures
        )  # already counted; the pods may have been deleted since
    limit = observed.job.spec.backoff_limit
    cause = "its pods were taken away" if taken and not crashed else _cause(gang, exits)
    if failures > limit:
        detail = (
            f"{failures} trainer attempts failed, spec.backoffLimit allows {limit}; the last one: {cause}"
        )
        return _failed(gang, failures, Failure(Reason.BACKOFF_LIMIT_EXCEEDED, detail))
    in_a_row = 1 if _was_healthy(gang, backoff) else max(failures, 1)
    seconds = backoff.delay(in_a_row) if missing is None else _MISSING_SECONDS
    retry_at = (gang.ended or observed.now) + timedelta(seconds=seconds)
    message = f"trainer attempt {gang.attempt} ended: {cause}; {failures} of {limit} failures allowed"
    if observed.now >= retry_at:
        return Attempt(
            gang.attempt,
            observed.job.spec.trainer.num_nodes,
            failures,
            keep=False,
            reason="TrainerRestarting",
            message=message,
            reduced=all_nodes(observed, gang),
        )
    reason = "TrainerBackOff"
    if missing is not None:
        reason, message = "Unavailable", f"trainer: {missing}"
    return Attempt(
        gang.attempt, gang.nodes, failures, keep=True, reason=reason, message=message, retry_at=retry_at
    )


def _failed(gang: Gang, failures: int, failure: Failure) -> Attempt:
    return Attempt(
        gang.attempt,
        gang.nodes,
        failures,
        keep=True,
        reason=failure.reason,
        message=failure.detail,
        failure=failure,
    )


def _was_healthy(gang: Gang, backoff: Backoff) -> bool:
    """Whether the attempt ran so long that earlier failures do not lengthen the back-off."""
    if gang.began is None or gang.ended is None:
        return False
    return (gang.ended - gang.began).total_seconds() >= backoff.healthy


def _cause(gang: Gang, exits: list[PodExit]) -> str:
    """The Job's message, and the end of the process that most likely caused the failure."""
    crashes = [end for end in exits if end.code not in {0, worker_protocol.EXIT_STOPPED}]
    words = [str(end) for end in sorted(crashes, key=lambda end: not end.last_line)[:1]]
    return ": ".join(text for text in (gang.message, *words) if text) or "no cause is known"
