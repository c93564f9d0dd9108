"""PURE. What changed between two statuses that a person should know, as Events."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_core.spec import ConditionStatus, RLJobStatus
from rljob_operator.cluster.port import Event
from rljob_operator.decisions.status import condition
from rljob_operator.names import Role

_TOLD = {"Suspended", "Succeeded", "Failed", "Stalled"}
# Reasons for not being Ready that are no news: a job that starts, stops or goes on.
_USUAL = {"Training", "SuspendedByUser", *(f"{role.value.capitalize()}NotReady" for role in Role)}


def events(before: RLJobStatus, after: RLJobStatus) -> tuple[Event, ...]:
    """In the order of their causes."""
    return (
        *_conditions(before, after),
        *_trainer(before, after),
        *_coordinator(before, after),
        *_pools(before, after),
    )


def _conditions(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    for new in after.conditions:
        old = condition(before, new.type)
        turned = new.status == "True" and (old is None or old.status != "True")
        if new.type in _TOLD and turned and not _repeats(after, new.type):
            bad = new.type in {"Failed", "Stalled"}
            yield Event("Warning" if bad else "Normal", new.reason, new.message or new.type)
        if new.type != "Ready":
            continue
        if turned:
            yield Event("Normal", new.reason, new.message or "all roles are at work")
        elif new.status == "False" and (old is None or new.reason != old.reason) and _is_news(new, after):
            yield Event("Warning", new.reason, new.message)


def _is_news(ready: ConditionStatus, after: RLJobStatus) -> bool:
    told = any(c.type in _TOLD and c.status == "True" for c in after.conditions)
    return (
        bool(ready.message)
        and not told
        and ready.reason not in _USUAL
        and not ready.reason.startswith("Trainer")
    )


def _repeats(after: RLJobStatus, kind: str) -> bool:
    """Whether another condition says the same: a job that failed is also stalled."""
    failed = condition(after, "Failed")
    return kind == "Stalled" and failed is not None and failed.status == "True"


def _trainer(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if after.trainer_attempt > before.trainer_attempt:
        if before.trainer_attempt == 0:
            yield Event("Normal", "TrainerStarted", "attempt 1")
        else:
            message = f"attempt {after.trainer_attempt} follows; {after.failures} have failed so far"
            yield Event("Normal", "TrainerRestarted", message)
    ready = condition(after, "Ready")
    if ready is not None and ready.reason == "TrainerBackOff" and after.failures != before.failures:
        yield Event("Warning", "TrainerFailed", ready.message)


def _coordinator(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if after.writer_epoch > before.writer_epoch > 0:
        message = f"writer epoch {after.writer_epoch} goes on at step {after.step}"
        yield Event("Normal", "CoordinatorRecovered", message)


def _pools(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    """Of a job that goes on: one that stops or starts has its engines go and come."""
    if not (_goes_on(before) and _goes_on(after)):
        return
    known = {pool.name: pool.replicas for pool in before.pools}
    for pool in after.pools:
        if known.get(pool.name, pool.replicas) != pool.replicas:
            yield Event(
                "Normal", "PoolScaled", f"pool {pool.name}: {known[pool.name]} → {pool.replicas} engines"
            )


def _goes_on(status: RLJobStatus) -> bool:
    over = (condition(status, kind) for kind in ("Suspended", "Succeeded", "Failed"))
    return not any(found is not None and found.status == "True" for found in over)
