"""The early trial: a group that is tried before it is quarantined, as two deaths point at it.

Most of what kills engines does so with its first token. So the cause is probably a group that the dead engine had
just begun when it crashed: none of its siblings is generated, and no progress is stored. A group that was so in both of
its deaths is the *early trial*; of several, the one that was sent last. It is tried next, alone, on the first engine
that is empty; the other groups that were in both deaths are so spared a third. No engine is emptied for it: if the dead
one's successor does not come soon, it is generated beside other work again.

If it is generated, it is released. If the engine dies, it waits while anything is generated that can explain its
earlier deaths (`attributed_deaths`): to try it again would cost one engine more, and waiting costs none. Once nothing
is left that can, and it has been through `maxAttempts` deaths, it is given up.

All of this holds only as long as nothing else is quarantined. If something is, it is a group like any other. Nothing of
it is in the ledger; a new coordinator has no early trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_core.job_state import ENGINE_LOST, QUARANTINE_DEATHS, Sibling
from rljob_core.messages import EngineDied
from rljob_core.planner import attributed_deaths, death_positions, endings
from rljob_core.planner.cohorts import EarlyTrial
from rljob_core.planner.context import PlannerContext
from rljob_core.trajectory import State, group_of

EARLY_DEATHS = QUARANTINE_DEATHS - 1
UNREAD = 16
"""When an engine dies, the results of up to one in so many of its slots are not read yet: it has begun as many more."""


def members(context: PlannerContext) -> list[Sibling]:
    """The siblings of the early trial that are tried."""
    early = context.cohorts.early
    group = context.state.groups.get(early.group) if early is not None else None
    siblings = group.siblings if group is not None else ()
    return [s for s in siblings if s.is_survivor and s.deaths >= EARLY_DEATHS]


def on_engine_lost(
    context: PlannerContext, engine: str, held: Sequence[str], report: EngineDied | None, *, explained: bool
) -> None:
    """Note which groups a dead engine had just begun; one that another one had just begun, too, is the early trial.

    Args:
        engine: the dead engine.
        held: everything that it was generating, in the order in which it was sent.
        report: of the process that watched the engine, if there is one.
        explained: whether this death has ended a group.
    """
    cohorts, state, run = context.cohorts, context.state, context.evaluation
    if explained:  # it explains the earlier deaths
        cohorts.early, cohorts.just_begun, cohorts.reached = None, frozenset(), {}
        return
    early = cohorts.early.group if cohorts.early is not None and members(context) else ""
    others = {group_of(t) for t in (*state.quarantined, *(run.quarantined() if run is not None else ()))} - {
        early
    }
    if not early or (others and set(map(group_of, held)) != {early}):
        cohorts.early = None
    begun = _just_begun(context, engine, held, "" if report is None else report.beginning)
    as_far = death_positions.groups_as_far(context, held, report)
    if cohorts.early is None:
        twice = [g for g in begun if g in cohorts.just_begun and not others]
        named = twice if len(begun) == 1 else []
        guesses = [(g, False) for g in named] + [(g, True) for g in as_far] + [(g, False) for g in twice]
        least = QUARANTINE_DEATHS if others else EARLY_DEATHS
        found = (
            EarlyTrial(g, has_tokens=tokens)
            for g, tokens in guesses
            if _may_be_tried_early(context, g, least)
        )
        cohorts.early = next(found, None)
    survivors = {g for g in cohorts.just_begun if g in state.groups and state.groups[g].deaths}
    cohorts.just_begun = frozenset(survivors | set(begun))


def release_if_progressed(context: PlannerContext) -> None:
    """Have no early trial any more if it is one that kills with its first token, and progress of it was found."""
    early = context.cohorts.early
    if early is None or early.has_tokens:
        return
    if any((sibling.id, sibling.attempt) in context.lookups.found for sibling in members(context)):
        context.cohorts.early = None


def on_failed_alone(context: PlannerContext, tried: Sequence[Sibling], cause: str) -> None:
    """Note what can explain the earlier deaths of a group that was alone on an engine that has died.

    Args:
        tried: the siblings that the engine was generating.
        cause: what is known of the engine's end, for people.
    """
    sibling, early = max(tried, key=lambda s: s.deaths), context.cohorts.early
    group = group_of(sibling.id)
    if early is None or early.group != group or not attributed_deaths.may_count_deaths(context, group):
        return
    if sibling.deaths >= context.spec.pipeline.max_attempts:
        rivals = frozenset(attributed_deaths.beside(context, group))
        context.cohorts.early = replace(early, failed=sibling.id, cause=cause, rivals=rivals)


def awaits_rivals(context: PlannerContext, group: str) -> bool:
    """Whether a group is not tried now, as something is generated that can explain its deaths.

    What waits for an engine itself is not waited for: it may wait for this group's step to end.
    """
    early = context.cohorts.early
    return early is not None and early.group == group and any(_is_generated(context, t) for t in early.rivals)


def give_up(context: PlannerContext) -> None:
    """Give up the early trial once it has failed alone and nothing else is left for `maxAttempts` of its deaths."""
    early = context.cohorts.early
    sibling = context.state.sibling(early.failed) if early is not None else None
    if early is None or sibling is None or not sibling.is_quarantined:
        return
    if any(s.state is State.GENERATING for s in members(context)):  # it is tried again, and may be released
        return
    if attributed_deaths.own_deaths(context, sibling, early.rivals) >= context.spec.pipeline.max_attempts:
        context.cohorts.early, context.cohorts.just_begun = None, frozenset()
        context.cohorts.reached = {}
        endings.exhaust_prompt(context, sibling, ENGINE_LOST, detail=early.cause)
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


def _may_be_tried_early(context: PlannerContext, name: str, least: int) -> bool:
    """Whether a group was held through so many deaths, and all of it that was waits, so that it can be tried apart."""
    group = context.state.groups.get(name)
    if group is None or group.deaths < least:
        return False
    return all(s.state is State.RESERVED for s in group.siblings if s.is_survivor)


def _is_generated(context: PlannerContext, rival: str) -> bool:
    """Whether it is being generated."""
    sibling = context.state.sibling(rival)
    if sibling is not None:
        return sibling.state is State.GENERATING
    return context.evaluation is not None and rival in context.evaluation.engines
