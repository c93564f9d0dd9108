"""What one reconcile of a job led to, and how a job ended whose reconciles one caller runs, as `rljob run` does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rljob_core.errors import SpecError
from rljob_core.spec import RLJobStatus
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.gang_scheduling import NOT_SERVED, GangNotServed
from rljob_operator.decisions.job_name import NAME
from rljob_operator.decisions.job_rules import NotAllowed
from rljob_operator.decisions.job_sites import SiteRefused
from rljob_operator.decisions.status import Phase

REJECTIONS = (SpecError, NotAllowed, SiteRefused, GangNotServed)
"""What is raised of a job whose objects cannot be made until the job, or something else, is changed."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of one reconcile.

    Attributes:
        phase: the job's phase.
        status: the status as written.
        actions: number of changes made; 0 if there is nothing to do, or nothing that can be done now.
        settled: whether nothing will happen unless the job is changed: it is stalled, or has stopped and is at rest.
        at_rest: whether the observed objects are the wanted ones.
        retry_at: when to reconcile again if no event comes before.
        expire_at: when a finished job is to be deleted.
    """

    phase: Phase
    status: RLJobStatus
    actions: int
    settled: bool
    at_rest: bool
    retry_at: datetime | None
    expire_at: datetime | None = None

    def seconds(self, now: datetime, *, longest: float) -> float:
        """Seconds until the next reconcile, if no event comes before."""
        times = [at for at in (self.retry_at, self.expire_at) if at is not None]
        return min([longest, *(max((at - now).total_seconds(), 0.0) for at in times)])

    @property
    def outcome(self) -> ReconcileOutcome:
        """How the job has ended, once it is settled."""
        found = condition(self.status, self.phase.value)
        reason, message = ("", "") if found is None else (found.reason, found.message)
        return ReconcileOutcome(self.phase, reason, message, self.status)


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """How a job ended: `phase` is any but RUNNING; `reason` and `message` are its condition's."""

    phase: Phase
    reason: str
    message: str
    status: RLJobStatus


def rejection_reason(error: Exception) -> str:
    """The reason of the condition of a job that cannot be made, by one of `REJECTIONS`."""
    if isinstance(error, SiteRefused):
        return error.reason
    if isinstance(error, GangNotServed):
        return NOT_SERVED
    if isinstance(error, NotAllowed):
        return "NotAllowed"
    return "InvalidName" if isinstance(error, SpecError) and error.path == NAME else "InvalidTemplate"
