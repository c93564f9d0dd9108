"""The prime suspect: a group that is tried before it is suspected, as two deaths point at it.

Most of what kills engines does so with its first token. So the culprit is probably a group that the dead engine had
just begun when it crashed: none of its siblings is generated, and no progress is stored. A group that was so in both of
its deaths is the *prime suspect*; of several, the one that was sent last. It is tried next, alone, on the first engine
that is empty; the other groups that were in both deaths are so spared a third. No engine is emptied for it: if the dead
one's successor does not come soon, it is generated beside other work again.

If it is generated, it is acquitted. If the engine dies, it waits while anything is generated that can explain its
earlier deaths (`attributed_deaths`): to try it again would cost one engine more, and waiting costs none. Once nothing
is left that can, and it has been through `maxAttempts` deaths, it is given up.

All of this holds only as long as there are no other suspects. With these, it is a group like any other. Nothing of it
is in the ledger; a new coordinator has no prime suspect.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.job_state import ENGINE_LOST, SUSPECT_DEATHS, Sibling
from rljob_core.planner import attributed_deaths, endings
from rljob_core.planner.cohorts import PrimeSuspect
from rljob_core.planner.context import PlannerContext
from rljob_core.trajectory import State, group_of

PRIME_DEATHS = SUSPECT_DEATHS - 1
UNREAD = 16
"""When an engine dies, the results of up to one in so many of its slots are not read yet: it has begun as many more."""


def members(context: PlannerContext) -> list[Sibling]:
    """The siblings of the prime suspect that are tried."""
    prime = context.cohorts.prime
    group = context.state.groups.get(prime.group) if prime is not None else None
    siblings = group.siblings if group is not None else ()
    return [s for s in siblings if s.is_survivor and s.deaths >= PRIME_DEATHS]


def on_engine_lost(
    context: PlannerContext, engine: str, held: Sequence[str], *, beginning: str, convicted: bool
) -> None:
    """Note which groups a dead engine had just begun; one that another one had just begun, too, is the prime suspect.

    Args:
        engine: the dead engine.
        held: everything that it was generating, in the order in which it was sent.
        beginning: see `EngineDied`.
        convicted: whether this death has ended a group.
    """
    cohorts, state, run = context.cohorts, context.state, context.evaluation
    if convicted:  # it explains the earlier deaths
        cohorts.prime, cohorts.just_begun = None, frozenset()
        return
    prime = cohorts.prime.group if cohorts.prime is not None and members(context) else ""
    others = {group_of(t) for t in (*state.suspects, *(run.suspects() if run is not None else ()))} - {prime}
    if others or not prime:
        cohorts.prime = None
    begun = _just_begun(context, engine, held, beginning)
    if not others and not prime:
        twice = [g for g in begun if g in cohorts.just_begun and state.groups[g].deaths == PRIME_DEATHS]
        cohorts.prime = next((PrimeSuspect(g) for g in twice if _all_wait(context, g)), None)
    survivors = {g for g in cohorts.just_begun if g in state.groups and state.groups[g].deaths}
    cohorts.just_begun = frozenset(survivors | set(begun))


def acquit_if_progressed(context: PlannerContext) -> None:
    """Have no prime suspect any more if progress of it was found: it does not kill with its first token."""
    if any((sibling.id, sibling.attempt) in context.lookups.found for sibling in members(context)):
        context.cohorts.prime = None


def on_failed_alone(context: PlannerContext, tried: Sequence[Sibling], cause: str) -> None:
    """Note what can explain the earlier deaths of a group that was alone on an engine that has died.

    Args:
        tried: the siblings that the engine was generating.
        cause: what is known of the engine's end, for people.
    """
    sibling, prime = max(tried, key=lambda s: s.deaths), context.cohorts.prime
    group = group_of(sibling.id)
    if prime is None or prime.group != group or not attributed_deaths.may_count_deaths(context, group):
        return
    if sibling.deaths >= context.spec.pipeline.max_attempts:
        rivals = frozenset(attributed_deaths.beside(context, group))
        context.cohorts.prime = PrimeSuspect(group, sibling.id, cause, rivals)


def awaits_rivals(context: PlannerContext, group: str) -> bool:
    """Whether a group is not tried now, as something is generated that can explain its deaths.

    What waits for an engine itself is not waited for: it may wait for this group's step to end.
    """
    prime = context.cohorts.prime
    return prime is not None and prime.group == group and any(_is_generated(context, t) for t in prime.rivals)


def convict(context: PlannerContext) -> None:
    """Give up the prime suspect once it has failed alone and nothing else is left for `maxAttempts` of its deaths."""
    prime = context.cohorts.prime
    sibling = context.state.sibling(prime.failed) if prime is not None else None
    if prime is None or sibling is None or not sibling.is_suspect:
        return
    if any(s.state is State.GENERATING for s in members(context)):  # it is tried again, and may be acquitted
        return
    if attributed_deaths.own_deaths(context, sibling, prime.rivals) >= context.spec.pipeline.max_attempts:
        context.cohorts.prime, context.cohorts.just_begun = None, frozenset()
        endings.exhaust_prompt(context, sibling, ENGINE_LOST, detail=prime.cause)
        if context.evaluation is not None:
            context.evaluation.explain_deaths()


def _just_begun(context: PlannerContext, engine: str, held: Sequence[str], beginning: str) -> list[str]:
    """Groups that an engine which crashed had begun and of which nothing is generated, first the one sent last.

    Only the one that it was beginning, if it has said so. None of an engine whose crash was not reported: it may have
    gone with its machine.
    """
    if engine not in context.liveness.dead:
        return []
    if beginning in map(group_of, held):
        return [beginning] if beginning in context.state.groups else []
    view = context.liveness.engines.get(engine)
    slots = len(held) if view is None else view.slots
    begun = held[: slots + slots // UNREAD]
    groups = [context.state.groups.get(g) for g in dict.fromkeys(map(group_of, reversed(begun)))]
    return [g.id for g in groups if g is not None and all(s.payload is None for s in g.siblings)]


def _all_wait(context: PlannerContext, group: str) -> bool:
    """Whether all of a group that engines died of waits, so that it can be tried apart."""
    return all(s.state is State.RESERVED for s in context.state.groups[group].siblings if s.is_survivor)


def _is_generated(context: PlannerContext, rival: str) -> bool:
    """Whether it is being generated."""
    sibling = context.state.sibling(rival)
    if sibling is not None:
        return sibling.state is State.GENERATING
    return context.evaluation is not None and rival in context.evaluation.engines
