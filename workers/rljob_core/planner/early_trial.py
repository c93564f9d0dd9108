"""The early trial: a group that is tried before it is quarantined, as two deaths point at it.

Most of what kills engines does so with its first token. So the cause is probably a group that the dead engine had
just begun when it crashed: none of its siblings is generated, and no progress is stored. A group that was so in both of
its deaths is the *early trial*; of several, the one that was sent last. It is tried next, alone, on the first engine
that is empty; the other groups that were in both deaths are so spared a third. No engine is emptied for it: if the dead
one's successor does not come soon, it is generated beside other work again.

If it is generated, it is released. If the engine dies, it waits while anything is generated that can explain its
earlier deaths (`_own_deaths`): to try it again would cost one engine more, and waiting costs none. Once nothing
is left that can, and it has been through `maxAttempts` deaths, it is given up.

What can explain a death was held through it, and has not been generated since. So a group comes to have more deaths of
its own, which nothing else can explain, while others are generated. `maxAttempts` of them end it, if it was alone in
the last one.

All of this holds only as long as nothing else is quarantined. If something is, it is a group like any other. Nothing of
it is in the ledger; a new coordinator has no early trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rljob_core.job_state import ENGINE_LOST, QUARANTINE_DEATHS, Sibling
from rljob_core.messages import EngineDied
from rljob_core.planner import endings
from rljob_core.planner.cohorts import EarlyTrial
from rljob_core.planner.context import PlannerContext
from rljob_core.trajectory import State, group_of

EARLY_DEATHS = QUARANTINE_DEATHS - 1
UNREAD = 16
"""When an engine dies, the results of up to one in so many of its slots are not read yet: it has begun as many more."""
NEAR_TOKENS = 16
"""Tokens by which two numbers may differ: an engine makes some more after it has last said how far it is."""
NEAR_SHARE = 16
"""Of long responses, one in so many tokens."""


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
    cohorts, state = context.cohorts, context.state
    if explained:  # it explains the earlier deaths
        cohorts.early, cohorts.just_begun, cohorts.reached = None, frozenset(), {}
        return
    early = cohorts.early.group if cohorts.early is not None and members(context) else ""
    others = {group_of(t) for t in (*state.quarantined, *context.evaluation.quarantined())} - {early}
    if not early or (others and set(map(group_of, held)) != {early}):
        cohorts.early = None
    begun = _just_begun(context, engine, held, "" if report is None else report.beginning)
    as_far = groups_as_far(context, held, report)
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
    if early is None or early.group != group or not _may_count_deaths(context, group):
        return
    if sibling.deaths >= context.spec.pipeline.max_attempts:
        rivals = frozenset(_beside(context, group))
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
    if _own_deaths(context, sibling, early.rivals) >= context.spec.pipeline.max_attempts:
        context.cohorts.early, context.cohorts.just_begun = None, frozenset()
        context.cohorts.reached = {}
        endings.exhaust_prompt(context, sibling, ENGINE_LOST, detail=early.cause)
        context.evaluation.explain_deaths()


def deaths_of(context: PlannerContext, trajectory: str) -> int:
    """How many engines died that were generating a sibling or a held-out answer, since it was generated last."""
    sibling = context.state.sibling(trajectory)
    if sibling is not None:
        return sibling.deaths
    return context.evaluation.deaths.get(trajectory, 0)


def earlier_failures(context: PlannerContext, sibling: Sibling) -> int:
    """How many failures a sibling has had that was now alone on an engine that died.

    Instead, its own deaths before this one count, if these are more. (What was given up has taken its deaths with it,
    except those of held-out prompts.)
    """
    group = group_of(sibling.id)
    if not _may_count_deaths(context, group):
        return sibling.failures
    return max(sibling.failures, _own_deaths(context, sibling, _beside(context, group)))


def _may_count_deaths(context: PlannerContext, group: str) -> bool:
    """Whether a group's deaths can be told from those of held-out prompts.

    The ledger does not say what these went through, so deaths before this coordinator count for nothing where an
    evaluation may explain them.
    """
    if context.spec.evaluation is not None and group in context.cohorts.inherited:
        return False
    return not context.evaluation.given_up


def _own_deaths(context: PlannerContext, sibling: Sibling, rivals: Iterable[str]) -> int:
    """How many of its deaths none of the rivals can explain.

    A rival that explains some of them was held through these, so it has been through as many at least.
    """
    return sibling.deaths - max((deaths_of(context, rival) for rival in rivals), default=0)


def _beside(context: PlannerContext, group: str) -> list[str]:
    """Everything of other groups that engines died of, or beside, and that was not generated since."""
    return [t for t in (*context.state.survivors, *context.evaluation.deaths) if group_of(t) != group]


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
    return rival in context.evaluation.engines if sibling is None else sibling.state is State.GENERATING


def groups_as_far(context: PlannerContext, held: Sequence[str], report: EngineDied | None) -> list[str]:
    """Of what a dead engine held, the groups that had come about as far in their last death, the closest first.

    The report of an engine's death says how many tokens each response had. What only happened to be there had another
    number of tokens each time. So of several groups that two engines held, the one whose numbers are the closest is
    probably what killed both. If a prompt kills engines, its sibling with the most tokens does it first; so these are
    compared before any one sibling with itself. This chooses what is tried next; as evidence it counts for nothing.

    Args:
        held: everything that it was generating.
        report: of its death; None if there is none, which says nothing.
    """
    last = context.cohorts.reached
    # Of what dies with its first token, the report says that it was being begun.
    now = {} if report is None else {t: n for t, n in report.reached.items() if t in held and n}
    before = {t: n for t, n in last.items() if t in held}
    kept = {t: n for t, n in last.items() if t in context.state.survivors}
    context.cohorts.reached = kept | now
    most_before, most_now = _most(before), _most(now)
    foremost = {g: abs(n - most_now[g]) for g, n in most_before.items() if _is_near(n, most_now.get(g))}
    single: dict[str, int] = {}
    for trajectory, tokens in before.items():
        if _is_near(tokens, now.get(trajectory)):
            group, apart = group_of(trajectory), abs(tokens - now[trajectory])
            single[group] = min(apart, single.get(group, apart))
    closest = sorted(foremost, key=foremost.__getitem__)
    return list(dict.fromkeys((*closest, *sorted(single, key=single.__getitem__))))


def _most(tokens: Mapping[str, int]) -> dict[str, int]:
    """The most tokens of a sibling, by group."""
    most: dict[str, int] = {}
    for trajectory, number in tokens.items():
        group = group_of(trajectory)
        most[group] = max(number, most.get(group, number))
    return most


def _is_near(one: int, other: int | None) -> bool:
    return other is not None and abs(one - other) <= max(NEAR_TOKENS, max(one, other) // NEAR_SHARE)
