"""When a job fails because a role that it needs ends again and again, while the job gets no further.

Whatever a process ended of, the kubelet or `rljob run` starts it again: what was missing may be back. So failures of a
pod are counted in a row: until the job commits a step and, of roles that serve others, until the pod is ready. (What
ends an engine that serves may be a prompt; the coordinator finds it.) Once each pod of a role has failed so often and
for so long, the job fails with the last words of one of them. Of the trainer, attempts count here for which something
was missing; its crashes count against `backoffLimit`.

Nothing is stored: an operator that starts counts from 0. Nothing is counted while it is known why no job can continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from rljob_core import worker_protocol
from rljob_core.failures import Failure, Reason
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.pods import Pod, PodExit
from rljob_operator.names import Role

_SERVING = {Role.ROLLOUT, Role.ENVIRONMENT, Role.REWARD}
_NEEDED = (Role.COORDINATOR, Role.ROLLOUT, Role.ENVIRONMENT, Role.REWARD)
_ATTEMPTS = Role.TRAINER, ""


@dataclass(frozen=True, slots=True)
class Patience:
    """After how many failures in a row, and how much time since the first, a role has failed for good.

    Attributes:
        times: failures.
        crashed: since the first one, if processes crash.
        missing: since the first one, if something outside is missing or does not answer.
    """

    times: int = 10
    crashed: timedelta = timedelta(minutes=10)
    missing: timedelta = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class _Row:
    """Failures of a pod, or of the trainer's attempts, in a row.

    Attributes:
        ends: of its processes that were seen, or the number of the attempt.
        failures: in a row.
        since: the first of them.
    """

    ends: int
    failures: int
    since: datetime

    def after(self, ends: int, now: datetime, *, failed: bool) -> _Row:
        """The row when so many processes have ended, the last one perhaps by a failure."""
        if ends == self.ends:
            return self
        return _Row(ends, self.failures + 1 if failed else 0, self.since if failed and self.failures else now)


@dataclass(frozen=True, slots=True)
class FailuresInARow:
    """Of each pod, and of the trainer's attempts.

    Attributes:
        step: that was committed last.
        rows: by role and pod.
    """

    step: int = 0
    rows: Mapping[tuple[Role, str], _Row] = field(default_factory=lambda: MappingProxyType({}))


def count(before: FailuresInARow, observed: Observed) -> FailuresInARow:
    """The failures after what was observed; to observe the same again changes nothing."""
    step = observed.metrics.step if observed.metrics is not None else observed.status.step
    is_new = step != before.step or observed.outage is not None
    rows = dict[tuple[Role, str], _Row]()
    for key, ends, end in _ends(observed):
        row = before.rows.get(key, _Row(0, 0, observed.now))
        if ends < row.ends:  # another pod of its name
            row = _Row(0, 0, observed.now)
        rows[key] = row.after(ends, observed.now, failed=end is not None and _is_failure(end))
        if is_new or _serves(key, observed):
            rows[key] = _Row(ends, 0, observed.now)
    if _ATTEMPTS in before.rows and not is_new:  # between two attempts there is none
        rows.setdefault(_ATTEMPTS, before.rows[_ATTEMPTS])
    return FailuresInARow(step, MappingProxyType(rows))


def stuck(failures: FailuresInARow, observed: Observed, patience: Patience) -> Failure | None:
    """Why the job fails; None if it does not."""
    for role in _NEEDED:
        rows = [row for (of, _), row in failures.rows.items() if of is role]
        wanted = sum(deployed.replicas for deployed in observed.deployed if deployed.role is role)
        ends = [pod.exit for pod in observed.pods if pod.role is role and pod.exit is not None]
        # Of engines at other sites, and of pods that have not begun, nothing is known.
        if rows and ends and len(rows) >= wanted and _is_over(rows, ends[0], observed.now, patience):
            return _failure(role, ends[0], rows)
    row, attempt = failures.rows.get(_ATTEMPTS), _missing(observed)
    if row is not None and attempt is not None and _is_over([row], attempt, observed.now, patience):
        return _failure(Role.TRAINER, attempt, [row])
    return None


def _ends(observed: Observed) -> Iterator[tuple[tuple[Role, str], int, PodExit | None]]:
    """Of each pod its newest end, with its number; of the trainer that of the newest attempt, once it has ended."""
    for pod in observed.pods:
        if pod.role in _NEEDED and not pod.terminating and not pod.evicted:
            yield (pod.role, pod.name), pod.ends, pod.exit
    newest = max((gang.attempt for gang in observed.gangs), default=0)
    if any(pod.exit is not None for pod in _gang(observed)):
        yield _ATTEMPTS, newest, _missing(observed)


def _gang(observed: Observed) -> list[Pod]:
    newest = max((gang.attempt for gang in observed.gangs), default=None)
    return [p for p in observed.pods if newest is not None and p.attempt == newest and not p.evicted]


def _missing(observed: Observed) -> PodExit | None:
    """The end of a pod of the newest attempt that something was missing for."""
    ends = (pod.exit for pod in _gang(observed))
    return next((end for end in ends if end is not None and end.unavailable is not None), None)


def _is_failure(end: PodExit) -> bool:
    return not end.fenced and end.code != worker_protocol.EXIT_STOPPED


def _serves(key: tuple[Role, str], observed: Observed) -> bool:
    role, name = key
    return role in _SERVING and any(pod.ready for pod in observed.pods if pod.name == name)


def _is_over(rows: list[_Row], end: PodExit, now: datetime, patience: Patience) -> bool:
    limit = patience.crashed if end.unavailable is None else patience.missing
    return all(row.failures >= patience.times and now - row.since >= limit for row in rows)


def _failure(role: Role, end: PodExit, rows: list[_Row]) -> Failure:
    times = min(row.failures for row in rows)
    detail = (
        f"{role}: {end.unavailable or end}; it has failed {times} times in a row, and the job got no further"
    )
    return Failure(Reason.NO_PROGRESS, detail)
