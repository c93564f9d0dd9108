"""Refuses to start a job if its child objects could have the same names as those of another job."""

from __future__ import annotations

from rljob_core.errors import SpecError
from rljob_operator import names
from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role

NAME = "metadata.name"


def check_name(observed: Observed) -> None:
    """Refuse an ambiguous name (`names.ambiguous`); a job that has run under such a name continues.

    Raises:
        SpecError: the name is ambiguous, and the job has never run; its path is `NAME`.
    """
    name = observed.job.metadata.name
    ran = bool(observed.children) or observed.status.trainer_attempt > 0
    if ran or not names.ambiguous(name):
        return
    other = name.partition(f"-{Role.ROLLOUT}")[0]
    raise SpecError(
        NAME,
        f"{name!r} is also what pools of a job {other!r} are called, so that children of both could have the same "
        f"names: choose a name without the part -{Role.ROLLOUT}",
    )
