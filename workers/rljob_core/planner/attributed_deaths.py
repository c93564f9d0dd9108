"""How many deaths of engines are a group's own: those that nothing else can explain.

What can explain a death was held through it, and has not been generated since. So a group comes to have more deaths of
its own while others are generated. `maxAttempts` of them end it, if it was alone in the last one.
"""

from __future__ import annotations

from collections.abc import Iterable

from rljob_core.job_state import Sibling
from rljob_core.planner.context import PlannerContext
from rljob_core.trajectory import group_of


def deaths_of(context: PlannerContext, trajectory: str) -> int:
    """How many engines died that were generating a sibling or a held-out answer, since it was generated last."""
    sibling = context.state.sibling(trajectory)
    if sibling is not None:
        return sibling.deaths
    return context.evaluation.deaths.get(trajectory, 0) if context.evaluation is not None else 0


def earlier_failures(context: PlannerContext, sibling: Sibling) -> int:
    """How many failures a sibling has had that was now alone on an engine that died.

    Instead, its own deaths before this one count, if these are more. (What was given up has taken its deaths with it,
    except those of held-out prompts.)
    """
    group = group_of(sibling.id)
    if not may_count_deaths(context, group):
        return sibling.failures
    return max(sibling.failures, own_deaths(context, sibling, beside(context, group)))


def may_count_deaths(context: PlannerContext, group: str) -> bool:
    """Whether a group's deaths can be told from those of held-out prompts.

    The ledger does not say what these went through, so deaths before this coordinator count for nothing where an
    evaluation may explain them.
    """
    if context.spec.evaluation is not None and group in context.cohorts.inherited:
        return False
    return context.evaluation is None or not context.evaluation.given_up


def own_deaths(context: PlannerContext, sibling: Sibling, rivals: Iterable[str]) -> int:
    """How many of its deaths none of the rivals can explain.

    A rival that explains some of them was held through these, so it has been through as many at least.
    """
    return sibling.deaths - max((deaths_of(context, rival) for rival in rivals), default=0)


def beside(context: PlannerContext, group: str) -> list[str]:
    """Everything of other groups that engines died of, or beside, and that was not generated since."""
    run = context.evaluation
    answers = run.deaths if run is not None else ()
    return [t for t in (*context.state.survivors, *answers) if group_of(t) != group]
