"""Which groups had come as far in two deaths of engines: what kills engines with a certain token has, each time.

The report of an engine's death says how many tokens each response had. What only happened to be there had another
number of tokens each time. So of several groups that two engines held, the one whose numbers are the closest is
probably what killed both. If a prompt kills engines, its sibling with the most tokens does it first; so these are
compared before any one sibling with itself. This chooses what is tried next; as evidence it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_core.messages import EngineDied
from rljob_core.planner.context import PlannerContext
from rljob_core.trajectory import group_of

NEAR_TOKENS = 16
"""Tokens by which two numbers may differ: an engine makes some more after it has last said how far it is."""
NEAR_SHARE = 16
"""Of long responses, one in so many tokens."""


def groups_as_far(context: PlannerContext, held: Sequence[str], report: EngineDied | None) -> list[str]:
    """Of what a dead engine held, the groups that had come about as far in their last death, the closest first.

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
