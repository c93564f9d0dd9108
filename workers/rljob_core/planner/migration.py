"""What a trajectory goes on from whose engine is gone: the newest progress of an earlier attempt, if its tokens count.

Engines publish progress, and nobody reads it until it is needed: then it is looked up, once per attempt, and what
waits for it is not dispatched before. It is inherited only if

- the attempt that published it is none that was to be left behind (a failure, a restart at new weights), and not one
  after which `GIVE_UP` others came no further: its tokens may be what ends them;
- the ledger knows all weights that made it: nothing of versions that were revoked, or lost, goes on;
- its oldest token is within the stamp of its group's buffer, and counts towards the group's base from then on.

So progress that is lost, late or of an older attempt costs tokens and nothing else. Whoever stores a payload deletes
its progress; what the dead leave behind is looked for once per version, and deleted.
"""

from __future__ import annotations

from rljob_core.actions import (
    DropProgress,
    FindProgress,
    ListProgress,
    ProgressFound,
    ProgressListed,
    StoredProgress,
)
from rljob_core.dispatch import EngineView, choose
from rljob_core.job_state import Sibling
from rljob_core.planner.context import PlannerContext
from rljob_core.records import Inherited
from rljob_core.spec import Inflight
from rljob_core.staleness import Buffer
from rljob_core.trajectory import State

GIVE_UP = 3
"""Attempts that may come no further than what they inherit before the trajectory is begun anew."""

_UNFINISHED = frozenset({State.RESERVED, State.GENERATING})


def carries(context: PlannerContext) -> bool:
    """Whether what a lost engine has generated is gone on from."""
    return context.spec.rollout.progress_tokens > 0 and context.spec.pipeline.inflight != Inflight.RESTART


def recall(context: PlannerContext) -> None:
    """Of a ledger that was just read: what may carry on."""
    context.lapsed += [
        s.id for s in context.state.siblings() if s.state is State.RESERVED and s.attempt > s.first
    ]


def seek(context: PlannerContext) -> None:
    """Look up the progress of what may carry on; and, once per version, of what it is stored."""
    lapsed, context.lapsed = context.lapsed, []
    found = map(context.state.sibling, dict.fromkeys(lapsed))
    wanted = {s.id: s.attempt for s in found if s is not None and s.state is State.RESERVED}
    if wanted and carries(context):
        context.sought |= wanted
        context.act(FindProgress(tuple(wanted), tuple(wanted.values())))
    if context.swept != context.state.version:
        context.swept = context.state.version
        context.act(ListProgress())


def on_progress_found(context: PlannerContext, found: ProgressFound) -> None:
    """What a sibling may go on from, or that there is nothing."""
    if context.sought.get(found.trajectory) != found.attempt:
        return
    del context.sought[found.trajectory]
    if found.progress is not None:
        context.progress[found.trajectory, found.attempt] = found.progress


def on_progress_listed(context: PlannerContext, listed: ProgressListed) -> None:
    """Delete what nobody will go on from."""
    siblings = {trajectory: context.state.sibling(trajectory) for trajectory in listed.trajectories}
    over = tuple(t for t, s in siblings.items() if s is None or s.state not in _UNFINISHED)
    if over:
        context.act(DropProgress(over))


def is_sought(context: PlannerContext, sibling: Sibling) -> bool:
    """Whether it must wait until it is known what it goes on from."""
    return context.sought.get(sibling.id) == sibling.attempt


def place(context: PlannerContext, sibling: Sibling, buffer: Buffer) -> tuple[EngineView, Inherited] | None:
    """An engine for a sibling that goes on, and from what; None if it begins anew, or no such engine has room.

    The engine's weights must be as new as those of the last token, or become so: versions never go back within a
    trajectory. With `inflight: Keep` they must be the very same.
    """
    stored = context.progress.get((sibling.id, sibling.attempt))
    if stored is None or not carries(context) or not _counts(context, sibling, buffer, stored):
        return None
    made = stored.inherited
    keeps = context.spec.pipeline.inflight == Inflight.KEEP
    engines = [e for e in context.engines.values() if not keeps or e.version == made.span.max]
    engine = choose(engines, min_version=made.span.max, waits=not keeps, prefetch=context.prefetch)
    return None if engine is None else (engine, made)


def _counts(context: PlannerContext, sibling: Sibling, buffer: Buffer, stored: StoredProgress) -> bool:
    made = stored.inherited
    return (
        max(sibling.first, sibling.attempt - GIVE_UP) <= made.attempt < sibling.attempt
        and buffer.admits(made.span.min)
        and all(context.state.lineage.get(version) == manifest for version, manifest in stored.weights)
    )
