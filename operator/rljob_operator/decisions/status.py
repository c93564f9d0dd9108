"""The status of an RLJob, computed from what was observed: its phase, conditions and counts.

Conditions follow kstatus: `Ready` means that the job trains, `Reconciling` that the objects are not yet as desired,
`Stalled` that they will not become so without a change. `Succeeded` and `Failed` stay true whatever happens to the
children, unless `resumed` removes them. `activeDeadlineSeconds` counts from the time at which `Suspended` became
false, so a job that is suspended and resumed has the whole time again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from rljob_core.failures import Failure, Reason
from rljob_core.spec import Mode, RLJobSpec, RLJobStatus
from rljob_operator.decisions.conditions import ConditionKind, ConditionValue, condition, conditions
from rljob_operator.decisions.gang_scheduling import gang_scheduled
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.kept_log import at_rest
from rljob_operator.decisions.metrics_conditions import HELD_BACK, sites_held_back, starvation
from rljob_operator.decisions.model_downloads import downloads, model_condition
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.pool_status import pool_counts
from rljob_operator.decisions.tracker_conditions import tracker_degraded
from rljob_operator.decisions.trainer_attempts import Attempt
from rljob_operator.decisions.trainer_size import REDUCED, reduced
from rljob_operator.names import Role


class Phase(Enum):
    """What a job does now; not part of the API, which shows conditions only."""

    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STALLED = "Stalled"
    """Its children cannot be rendered from its spec; existing children stay, and a corrected spec ends this phase."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The status to write, and when to reconcile again if no event comes before."""

    phase: Phase
    status: RLJobStatus
    retry_at: datetime | None = None
    expire_at: datetime | None = None
    """When the finished job is to be deleted; None to keep it."""


@dataclass(frozen=True, slots=True)
class _PhaseWithReason:
    phase: Phase
    reason: str
    message: str = ""


def assess(
    observed: Observed, attempt: Attempt, *, stuck: Failure | None = None, metrics_due: bool
) -> Assessment:
    """The job's phase and status.

    Args:
        observed: what is known of the job.
        attempt: the decision about the trainer's attempt.
        stuck: why the job fails that gets no further (`repeated_failures`); None if it does not.
        metrics_due: write the metrics into the status; they are always written when the job ends.
    """
    deadline = _deadline(observed)
    verdict = _finished(observed.status) or _ended_by_role(observed)
    if verdict is None and attempt.complete:
        verdict = _PhaseWithReason(
            Phase.SUCCEEDED, "TrainingComplete", f"all {_steps(observed)} steps are trained"
        )
    if verdict is None and attempt.failure is not None:
        verdict = _failed(attempt.failure)
    if verdict is None and deadline is not None and observed.now >= deadline:
        limit = observed.job.spec.active_deadline_seconds
        detail = f"it ran for longer than activeDeadlineSeconds, {limit}"
        verdict = _failed(Failure(Reason.DEADLINE_EXCEEDED, detail))
    if verdict is None and observed.job.spec.suspend:
        verdict = _PhaseWithReason(Phase.SUSPENDED, "SuspendedByUser", "spec.suspend is true")
    if verdict is None and (queue := observed.admission) is not None and not queue.admitted:
        verdict = _PhaseWithReason(Phase.SUSPENDED, queue.reason, queue.message)
    if verdict is None and stuck is not None:
        verdict = _failed(stuck)
    if verdict is None:
        verdict = _progress(observed, attempt)
    running = verdict.phase is Phase.RUNNING
    times = [time for time in (attempt.retry_at, deadline) if time is not None]
    status = _status(
        observed, verdict, attempt if running or attempt.failure or attempt.complete else None, metrics_due
    )
    expiry = _expiry(status, observed.job.spec.ttl_seconds_after_finished)
    return Assessment(verdict.phase, status, min(times, default=None) if running else None, expiry)


def rejected(observed: Observed, reason: str, message: str) -> Assessment:
    """The status of a job whose children cannot be rendered, or are refused, with its present spec."""
    verdict = _finished(observed.status) or _PhaseWithReason(Phase.STALLED, reason, message)
    return Assessment(verdict.phase, _status(observed, verdict, None, metrics_due=True))


def resumed(status: RLJobStatus) -> RLJobStatus:
    """The status with which an ended job continues: no conditions, no failures, the same number of attempts."""
    return status.model_copy(update={"conditions": [], "failures": 0, "trainer_nodes": 0, "trainer_ranks": 0})


# ---------------------------------------------------------------------------------------------- verdicts


def _steps(observed: Observed) -> int:
    """Steps of a job that is complete: more than `spec.steps`, if that was lowered below what had begun."""
    trained = observed.metrics.step if observed.metrics is not None else 0
    return max(observed.job.spec.steps, trained)


def _finished(status: RLJobStatus) -> _PhaseWithReason | None:
    for phase in (Phase.SUCCEEDED, Phase.FAILED):
        found = condition(status, phase.value)
        if found is not None and found.status == "True":
            # The message of `Failed` also has advice (`failure_advice`); `Ready` has the error alone.
            ready = condition(status, "Ready")
            return _PhaseWithReason(phase, found.reason, (ready or found).message)
    return None


def _failed(failure: Failure) -> _PhaseWithReason:
    return _PhaseWithReason(Phase.FAILED, failure.reason, failure.detail)


def _ended_by_role(observed: Observed) -> _PhaseWithReason | None:
    for pod in observed.pods:
        # What a container says in which code of users runs never ends the job.
        if (
            pod.role not in {Role.TRACKER, Role.ENVIRONMENT}
            and pod.exit is not None
            and pod.exit.fatal is not None
        ):
            return _failed(pod.exit.fatal.said_by(pod.role))
    return None


def _deadline(observed: Observed) -> datetime | None:
    seconds = observed.job.spec.active_deadline_seconds
    since = condition(observed.status, "Suspended")
    if seconds is None or since is None or since.status != "False" or since.last_transition_time is None:
        return None
    return datetime.fromisoformat(since.last_transition_time) + timedelta(seconds=seconds)


def _expiry(status: RLJobStatus, seconds: int | None) -> datetime | None:
    ends = (condition(status, phase.value) for phase in (Phase.SUCCEEDED, Phase.FAILED))
    end = next((c for c in ends if c is not None and c.status == "True"), None)
    if seconds is None or end is None or end.last_transition_time is None:
        return None
    return datetime.fromisoformat(end.last_transition_time) + timedelta(seconds=seconds)


_STARVED: tuple[ConditionKind, ...] = ("TrainerStarved", "RolloutStarved")
_WAITED_FOR = (Role.COORDINATOR, Role.ROLLOUT, Role.ENVIRONMENT, Role.REWARD, Role.TRAINER)
_ALL_NEEDED = {Role.COORDINATOR, Role.TRAINER}


def _progress(observed: Observed, attempt: Attempt) -> _PhaseWithReason:
    """The verdict on a running job; the reason says what it waits for, or is `Training`."""
    if observed.outage is not None:
        return _PhaseWithReason(Phase.RUNNING, observed.outage.reason, observed.outage.message)
    if attempt.reason != "TrainerRunning":
        return _PhaseWithReason(Phase.RUNNING, attempt.reason, attempt.message)
    ready = dict.fromkeys(Role, 0)
    wanted = dict(ready)
    for deployed in observed.deployed:
        ready[deployed.role] += deployed.ready
        wanted[deployed.role] += deployed.replicas
    gang = [pod for pod in observed.pods if pod.attempt == attempt.number]
    ready[Role.TRAINER], wanted[Role.TRAINER] = (
        sum(pod.ready for pod in gang),
        attempt.nodes,
    )
    # The job needs one engine, one reward worker, the coordinator, all pods of the trainer's gang, and one environment
    # pod if it has such pods.
    waited_for = [role for role in _WAITED_FOR if role is not Role.ENVIRONMENT or has_environment(observed)]
    needed = {role: max(wanted[role] if role in _ALL_NEEDED else 1, 1) for role in waited_for}
    waiting = [role for role in waited_for if ready[role] < needed[role]]
    if waiting:
        first = f"{waiting[0].value.capitalize()}NotReady"
        usual = first, f"{ready[waiting[0]]} of {wanted[waiting[0]]} ready"
        troubles = (found for role in waiting for found in _troubles(observed, role))
        return _PhaseWithReason(Phase.RUNNING, *next(troubles, usual))
    return _PhaseWithReason(Phase.RUNNING, "Training")


def _troubles(observed: Observed, role: Role) -> Iterator[tuple[str, str]]:
    """Reasons and messages of a role's pods that do not become ready or cannot be created."""
    for deployed in observed.deployed:
        if deployed.role is role and deployed.trouble is not None:
            yield deployed.trouble.reason, f"{role}: {deployed.trouble.message}"
    for pod in observed.pods:
        if pod.role is role and pod.trouble is not None and not pod.terminating:
            yield pod.trouble.reason, f"{pod.name}: {pod.trouble.message}"


def _as_wanted(observed: Observed) -> bool:
    return all(d.settled for d in observed.deployed if d.role is not Role.TRACKER)


# ---------------------------------------------------------------------------------------------- status


def _status(
    observed: Observed, verdict: _PhaseWithReason, attempt: Attempt | None, metrics_due: bool
) -> RLJobStatus:
    phase, reason, message = verdict.phase, verdict.reason, verdict.message
    ready = phase is Phase.RUNNING and reason == "Training"
    moving_reason, moving_message = reason, message
    if phase is Phase.RUNNING:
        moving = not ready or not _as_wanted(observed)
        if ready and moving:
            troubles = (found for role in _WAITED_FOR for found in _troubles(observed, role))
            moving_reason, moving_message = next(troubles, ("PodsStarting", ""))
        elif ready and observed.metrics is not None and observed.metrics.pipeline is not None:
            moving_message = observed.metrics.pipeline.message
            moving, moving_reason = bool(moving_message), "PipelineRefused"
    else:
        moving = phase is not Phase.STALLED and not at_rest(observed, failed=phase is Phase.FAILED)
    stalled = phase in {Phase.FAILED, Phase.STALLED}
    values: dict[ConditionKind, ConditionValue] = {
        "Ready": (ready, reason, message),
        "Suspended": (phase is Phase.SUSPENDED, reason if phase is Phase.SUSPENDED else "NotSuspended", ""),
        "Reconciling": (moving, *((moving_reason, moving_message) if moving else ("AsWanted", ""))),
        "Stalled": (stalled, reason if stalled else "NotStalled", message if phase is Phase.STALLED else ""),
        "Succeeded": (True, reason, message) if phase is Phase.SUCCEEDED else (False, "NotFinished", ""),
        "Failed": (True, reason, message) if phase is Phase.FAILED else (False, "NotFailed", ""),
    }
    if phase is not Phase.RUNNING:
        values |= dict.fromkeys(_STARVED, (False, "NotTraining", ""))
    elif metrics_due and observed.metrics is not None:
        held = frozenset(c.type for c in observed.status.conditions if c.status == "True")
        values |= starvation(observed.metrics, held)
    if observed.metrics is not None and observed.metrics.optimizer_reset:  # it stays true: nothing undoes it
        values["OptimizerReset"] = (True, "CheckpointLost", observed.metrics.optimizer_reset)
    values |= model_condition(observed)
    if (metrics := observed.metrics) and (metrics.samples_lost or condition(observed.status, "SamplesLost")):
        lost = metrics.samples_lost
        values["SamplesLost"] = (bool(lost), "SamplesNotStored" if lost else "SamplesStored", lost)
    if condition(observed.status, HELD_BACK) is not None or observed.job.spec.rollout.sites:
        if phase is not Phase.RUNNING:
            values[HELD_BACK] = (False, "NotTraining", "")
        elif observed.metrics is not None:
            values[HELD_BACK] = sites_held_back(observed.metrics)
    values |= tracker_degraded(observed) if phase is Phase.RUNNING else {}
    if phase is not Phase.STALLED:
        at_work = attempt is not None and phase is Phase.RUNNING
        values |= gang_scheduled(observed, attempt.number if attempt is not None and at_work else None)
    if attempt is not None and phase is Phase.RUNNING:
        smaller = attempt.reduced or reduced(observed, attempt.number, attempt.nodes)
    elif phase is Phase.STALLED:
        # The gang stays as it is, and so do the condition and the time from which trials count.
        smaller = None
    else:
        smaller = (False, "NotTraining", "") if condition(observed.status, REDUCED) is not None else None
    if smaller is not None:
        values[REDUCED] = smaller
    update: dict[str, object] = {
        "observed_generation": observed.job.metadata.generation or 0,
        "conditions": conditions(observed, observed.status, values),
        "pools": pool_counts(observed, running=phase is Phase.RUNNING),
        "downloads": downloads(observed),
        "environment": counts_of(observed, Role.ENVIRONMENT) if has_environment(observed) else None,
        "rollout": counts_of(observed, Role.ROLLOUT),
    }
    if attempt is not None:
        update |= {
            "trainer_attempt": attempt.number,
            "trainer_nodes": attempt.nodes,
            "trainer_ranks": attempt.nodes * observed.job.spec.trainer.num_proc_per_node,
            "failures": attempt.failures,
        }
    elif phase is Phase.SUSPENDED:
        update |= {"trainer_nodes": 0, "trainer_ranks": 0}
    if observed.metrics is not None and (metrics_due or phase is not Phase.RUNNING):
        update |= _metrics(observed.status, observed.metrics)
    return printed(observed.status.model_copy(update=update), observed.job.spec)


def outdated(status: RLJobStatus, observed: Observed) -> bool:
    """Whether the observed metrics differ from those in the status."""
    if observed.metrics is None:
        return False
    return any(getattr(status, name) != value for name, value in _metrics(status, observed.metrics).items())


def _metrics(status: RLJobStatus, metrics: JobMetrics) -> dict[str, object]:
    """The metrics as fields of the status; the largest staleness is that of the whole job."""
    update: dict[str, object] = {
        name: getattr(metrics, name) for name in type(metrics).__slots__ if name in RLJobStatus.model_fields
    }
    if metrics.staleness_max is not None:
        update["staleness_max"] = max(metrics.staleness_max, status.staleness_max or 0)
    return update


def has_environment(observed: Observed) -> bool:
    """Whether the job has environment pods, perhaps none at the moment."""
    return any(deployed.role is Role.ENVIRONMENT for deployed in observed.deployed)


def counts_of(observed: Observed, role: Role) -> str:
    """Pods of a role that are ready, of those wanted: `2/3`."""
    found = [deployed for deployed in observed.deployed if deployed.role is role]
    return f"{sum(d.ready for d in found)}/{sum(d.replicas for d in found)}"


_ENDED = ("Failed", "Succeeded", "Suspended")
_STARVED_SIDES = {"TrainerStarved": "trainer", "RolloutStarved": "engines"}


def printed(status: RLJobStatus, spec: RLJobSpec) -> RLJobStatus:
    """The status with `state` and `progress`, of its conditions and its step: two columns of `kubectl get rljob`.

    Both change only when the job does: no figure in them changes by itself. A job that has succeeded is not written
    again because its spec changes: it came as far as it came.
    """
    state, progress = _state(status, spec.pipeline.mode), status.progress or ""
    if state != "Succeeded" or progress.partition("/")[0] != str(status.step):
        # More than spec.steps, if that was lowered below what had begun.
        progress = f"{status.step}/{max(spec.steps, status.step)}"
    return status.model_copy(update={"state": state, "progress": progress})


def _state(status: RLJobStatus, mode: Mode) -> str:
    true = {found.type: found.reason for found in status.conditions if found.status == "True"}
    for kind in _ENDED:
        if kind in true:
            if kind == "Suspended" and true[kind] != "SuspendedByUser":
                return true[kind]  # by the queue that it waits in
            return f"{kind}: {true[kind]}" if kind == "Failed" else kind
    if "Stalled" in true:
        return f"Stalled: {true['Stalled']}"
    if "Ready" not in true:
        ready = condition(status, "Ready")
        return "Waiting" if ready is None else f"Waiting: {ready.reason}"
    # In Synchronous mode one side always waits for the other: nothing is wrong.
    starved = (
        [who for kind, who in _STARVED_SIDES.items() if kind in true] if mode != Mode.SYNCHRONOUS else []
    )
    return f"Starved: {', '.join(starved)}" if starved else "Ready"
