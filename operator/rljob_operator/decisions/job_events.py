"""The Kubernetes Events that a change of an RLJob's status gives rise to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rljob_core.spec import ConditionStatus, RLJob, RLJobStatus
from rljob_operator.cluster.port import Event
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.metrics_conditions import HELD_BACK
from rljob_operator.decisions.tracker_conditions import DEGRADED
from rljob_operator.decisions.trainer_size import REDUCED
from rljob_operator.names import Role

_ANNOUNCED = {"Suspended", "Succeeded", "Failed", "Stalled"}
_WARNINGS = {"Failed", "Stalled", "OptimizerReset", "SamplesLost", "ScalingLimited", HELD_BACK, DEGRADED}
# Reasons for not being Ready that need no event: a job that starts, stops or trains.
_ROUTINE = {"Training", "SuspendedByUser", *(f"{role.value.capitalize()}NotReady" for role in Role)}


def events(before: RLJobStatus, after: RLJobStatus) -> tuple[Event, ...]:
    """The events for the change from one status to the next, causes before effects."""
    return (
        *_conditions(before, after),
        *_trainer(before, after),
        *_coordinator(before, after),
        *_pools(before, after),
    )


def rules_warning(job: RLJob, before: RLJobStatus, warning: str) -> tuple[Event, ...]:
    """What the rules for jobs would refuse if they were enforced, once per generation of the job.

    Args:
        job: the job, with its generation.
        before: the status that was written last.
        warning: `JobRules.warning`.
    """
    if not warning or before.observed_generation == job.metadata.generation:
        return ()
    return (Event("Warning", "NotAllowed", warning),)


def _conditions(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    for new in after.conditions:
        old = condition(before, new.type)
        became_true = new.status == "True" and (old is None or old.status != "True")
        if new.type in _ANNOUNCED | _WARNINGS and became_true and not _repeats(after, new.type):
            kind: Literal["Normal", "Warning"] = "Warning" if new.type in _WARNINGS else "Normal"
            yield Event(kind, new.reason, new.message or new.type)
        if new.type != "Ready":
            continue
        if became_true:
            yield Event("Normal", new.reason, new.message or "all roles are at work")
        elif new.status == "False" and (old is None or new.reason != old.reason) and _needs_event(new, after):
            yield Event("Warning", new.reason, new.message)


def _needs_event(ready: ConditionStatus, after: RLJobStatus) -> bool:
    announced = any(c.type in _ANNOUNCED and c.status == "True" for c in after.conditions)
    return (
        bool(ready.message)
        and not announced
        and ready.reason not in _ROUTINE
        and not ready.reason.startswith("Trainer")
    )


def _repeats(after: RLJobStatus, kind: str) -> bool:
    """Whether another condition reports the same: a job that failed is also stalled."""
    failed = condition(after, "Failed")
    return kind == "Stalled" and failed is not None and failed.status == "True"


def _trainer(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if after.trainer_attempt > before.trainer_attempt:
        if before.trainer_attempt == 0:
            yield Event("Normal", "TrainerStarted", f"attempt {after.trainer_attempt}")
        else:
            message = f"attempt {after.trainer_attempt} follows; {after.failures} have failed so far"
            yield Event("Normal", "TrainerRestarted", message)
    if 0 < before.trainer_nodes != after.trainer_nodes > 0:
        reduced = condition(after, REDUCED)
        why = f": {reduced.message}" if reduced is not None and reduced.message else ""
        yield Event("Normal", "TrainerResized", f"{before.trainer_nodes} → {after.trainer_nodes} nodes{why}")
    ready = condition(after, "Ready")
    if ready is not None and ready.reason == "TrainerBackOff" and after.failures != before.failures:
        yield Event("Warning", "TrainerFailed", ready.message)


def _coordinator(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if after.writer_epoch > before.writer_epoch > 0:
        message = f"writer epoch {after.writer_epoch} continues at step {after.step}"
        yield Event("Normal", "CoordinatorRecovered", message)


def _pools(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    """Changes of pool sizes, unless the job starts or stops: that changes the sizes of all pools."""
    if not (_is_active(before) and _is_active(after)):
        return
    known = {pool.name: pool.replicas for pool in before.pools}
    decided = after.autoscaling
    reason = f": {decided.message}" if decided is not None and decided.message else ""
    internal = [] if decided is None else [pool for pool in decided.pools if pool.policy == "Internal"]
    why = {pool.name: reason for pool in internal}
    for pool in after.pools:
        if known.get(pool.name, pool.replicas) != pool.replicas:
            yield Event(
                "Normal",
                "PoolScaled",
                f"pool {pool.name}: {known[pool.name]} → {pool.replicas} engines{why.get(pool.name, '')}",
            )


def _is_active(status: RLJobStatus) -> bool:
    ends = (condition(status, kind) for kind in ("Suspended", "Succeeded", "Failed"))
    return not any(found is not None and found.status == "True" for found in ends)
