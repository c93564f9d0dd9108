"""From which progress the trajectories of a lost engine resume on another engine.

Engines publish the progress of what they generate. Nobody reads it until an engine is lost; then the planner looks it
up once per attempt, and does not dispatch the trajectory before the answer. The next attempt inherits the progress
only if

- the attempt that published it may be resumed: none after it failed or was restarted at new weights, and fewer than
  `FRUITLESS_ATTEMPTS` attempts since have resumed it and come no further (its tokens may be what ends them); for a
  trajectory that is quarantined, one such attempt is enough;
- the ledger holds the manifests of all weights that produced it, so no token of a revoked or lost version is trained;
- its oldest token is within the stamp of the group's buffer. It counts towards the group's base from then on.

Progress that is lost, late or of an older attempt therefore costs tokens and nothing else. An engine that stores a
payload deletes its progress; what lost engines leave behind is listed once per version and deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from rljob_core.actions import DropProgress, ListProgress, ProgressListed, StoredProgress
from rljob_core.job_state import Sibling
from rljob_core.planner import site_marks
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView, choose
from rljob_core.planner.progress_lookups import HERE
from rljob_core.records import Inherited
from rljob_core.spec import Inflight
from rljob_core.staleness import Buffer
from rljob_core.trajectory import State

FRUITLESS_ATTEMPTS = 3
"""Attempts that may come no further than what they inherited before the trajectory starts from its prompt again."""

_UNFINISHED = frozenset({State.RESERVED, State.GENERATING})


def carries(context: PlannerContext) -> bool:
    """Whether this job's trajectories resume from progress at all."""
    return context.spec.rollout.progress_tokens > 0 and context.spec.pipeline.inflight != Inflight.RESTART


def find_interrupted(context: PlannerContext) -> None:
    """After a replay of the ledger: which waiting siblings may resume."""
    waiting = (s for s in context.state.siblings() if s.state is State.RESERVED and s.attempt > s.first)
    context.lookups.interrupted |= {s.id: HERE for s in waiting}


def look_up_progress(context: PlannerContext) -> None:
    """Ask for the progress of interrupted trajectories; once per version, ask what progress is stored at all."""
    together: dict[tuple[str, int], dict[str, int]] = {}
    for trajectory, behind in context.lookups.pop_interrupted().items():
        sibling = context.state.sibling(trajectory)
        if sibling is not None and sibling.state is State.RESERVED and carries(context):
            together.setdefault(behind, {})[trajectory] = sibling.attempt
    for (site, mark), wanted in together.items():
        context.lookups.pending |= wanted
        site_marks.look_up_behind_mark(context, site, mark, wanted)
    if context.lookups.listing_is_due(context.state.version):
        context.act(ListProgress())


def on_progress_listed(context: PlannerContext, listed: ProgressListed) -> None:
    """Delete the progress of trajectories that have ended or are generated already."""
    siblings = {trajectory: context.state.sibling(trajectory) for trajectory in listed.trajectories}
    over = tuple(t for t, s in siblings.items() if s is None or s.state not in _UNFINISHED)
    if over:
        context.act(DropProgress(over))


def choose_to_resume(
    context: PlannerContext, sibling: Sibling, buffer: Buffer, engines: Iterable[EngineView]
) -> tuple[EngineView, Inherited] | None:
    """Of these engines the one on which a sibling resumes, and what it inherits.

    None if there is no progress that it may inherit, or no engine that may resume it has room; it then starts from
    its prompt. The engine's weights must be as new as those of the last token, or become so: versions never go back
    within a trajectory. Under `inflight: Keep` they must be the very same.
    """
    stored = context.lookups.found.get((sibling.id, sibling.attempt))
    if stored is None or not carries(context) or not _may_inherit(context, sibling, buffer, stored):
        return None
    made = stored.inherited
    keeps = not context.swaps_on_its_own
    # Progress comes to the hub from everywhere, and goes nowhere from there.
    able = [e for e in engines if not e.site and (not keeps or e.version == made.span.max)]
    engine = choose(able, min_version=made.span.max, waits=not keeps, prefetch=context.prefetch)
    return None if engine is None else (engine, made)


def _may_inherit(context: PlannerContext, sibling: Sibling, buffer: Buffer, stored: StoredProgress) -> bool:
    made = stored.inherited
    fruitless = 1 if sibling.is_quarantined else FRUITLESS_ATTEMPTS
    return (
        max(sibling.first, sibling.attempt - fruitless) <= made.attempt < sibling.attempt
        and buffer.admits(made.span.min)
        and all(context.state.lineage.get(version) == manifest for version, manifest in stored.weights)
    )
