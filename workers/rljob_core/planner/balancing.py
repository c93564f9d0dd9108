"""Stragglers that another engine would end sooner are moved to it, with the tokens that they have.

A step ends with its last answers. What takes long on a slow or crowded engine would often end sooner on a faster or
emptier one, although that computes its context again. So the coordinator has an engine `Release` such a trajectory:
the engine publishes its progress and gives it back, as one that drains does, and the trajectory resumes on the engine
for which it was released. That engine keeps a slot for it meanwhile. Engines that are equally loaded and fast release
nothing.

What is still to come of an answer is a guess, from its predicted length and the tokens that it has; so a move must be
expected to save much, and a trajectory moves `MOST_MOVES` times at most. A trajectory that waits for its first engine
goes before one that moves, unless it belongs to a later step or is expected to be shorter than what is still to come.
"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_core.actions import SendToEngine
from rljob_core.lengths import tokens_to_come
from rljob_core.messages import Release
from rljob_core.planner import migration
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.far_engines import transfer_seconds
from rljob_core.planner.migrations import Straggler
from rljob_core.trajectory import State, group_of

MOST_MOVES = 3
"""Times that one trajectory is moved."""
HANDOVER_SECONDS = 0.5
"""From the decision to the first new token, without the context that is computed again."""
LEAST_SAVED = 0.25
"""Share of the remaining time that a move must be expected to save: lengths are guesses, and so are profiles."""
PREFILL_SHARE = 0.1
"""What a token of a context that is computed takes, of one that is generated; see `Placement`."""
_EVERY_SECONDS = 1.0
_CONSIDERED = 64


def release_stragglers(context: PlannerContext) -> None:
    """Have engines release what an engine with a free slot would end much sooner."""
    migrations, liveness = context.migrations, context.liveness
    migrations.settle(context.state, liveness)
    freed = liveness.pop_freed()
    # What may be what kills engines is tried by rules of its own.
    if len(liveness.engines) < 2 or not migration.carries(context) or context.state.survivors:
        return
    if context.evaluation.waiting:
        return
    is_due = context.now >= migrations.looked + _EVERY_SECONDS
    # What waits would take a slot that has just become free; what is free besides can wait for the next look.
    candidates = liveness.with_room(context.prefetch) if is_due else freed
    # An engine at a site cannot read the progress of others.
    free = [
        v for v in candidates if v.free_slots > 0 and v.profile is not None and not v.stuck and not v.site
    ]
    if not free:
        if is_due and any(view.site for view in candidates):
            migrations.looked = (
                context.now
            )  # else all engines of large sites would be looked at in every decision
        return
    if is_due:
        migrations.looked = context.now
        migrations.forget_ended(context.state)
        migrations.stragglers = sorted(_stragglers(context), key=lambda s: (-s.seconds, s.sibling.id))[
            :_CONSIDERED
        ]
    released: dict[str, list[Straggler]] = {}
    for target in sorted(free, key=lambda view: (view.step_seconds(0.0), view.engine)):
        while target.free_slots > 0 and (straggler := _best(context, target)) is not None:
            migrations.begin(straggler, target, liveness.heartbeats)
            released.setdefault(straggler.source.engine, []).append(straggler)
        if target.free_slots > 0 and not _gains_anything(context, target):
            break  # the others are slower
    for engine, stragglers in released.items():
        ids, attempts = tuple(s.sibling.id for s in stragglers), tuple(s.attempt for s in stragglers)
        context.act(SendToEngine(engine, (Release(ids, attempts),), context.site_of(engine)))


def _stragglers(context: PlannerContext) -> Iterator[Straggler]:
    """What engines could release."""
    state, lengths, migrations = context.state, context.lengths.known, context.migrations
    most = context.spec.rollout.sampling.max_tokens
    for source in context.liveness.engines.values():
        if source.profile is None or not source.reachable:
            continue
        for trajectory, attempt, tokens in source.longest:
            if trajectory in migrations.under_way or migrations.counts.get(trajectory, 0) >= MOST_MOVES:
                continue
            sibling = state.sibling(trajectory)
            if sibling is None or sibling.state is not State.GENERATING or sibling.attempt != attempt:
                continue
            group = state.groups[group_of(trajectory)]
            if (estimate := lengths.get(group.prompt)) is None:
                continue
            remaining = min(tokens_to_come(estimate, tokens), most - tokens)
            buffer = state.buffers.buffer_of(group.id)
            yield Straggler(
                sibling,
                attempt,
                buffer.step,
                source,
                tokens + context.room.prompts.get(group.id, 0),
                remaining,
                remaining * source.step_seconds(0.0),
            )


def _gains_anything(context: PlannerContext, target: EngineView) -> bool:
    """Whether this engine would end anything much sooner, if that may move or not."""
    return any(_saved(context, s, target) > LEAST_SAVED * s.seconds for s in context.migrations.stragglers)


def _best(context: PlannerContext, target: EngineView) -> Straggler | None:
    """What gains the most by moving to this engine; None if nothing gains enough."""
    best, most = None, 0.0
    for straggler in context.migrations.stragglers:
        if straggler.seconds <= most:
            break  # what follows has less time to save
        saved = _saved(context, straggler, target)
        if saved > max(most, LEAST_SAVED * straggler.seconds) and _may_move(context, straggler, target):
            best, most = straggler, saved
    return best


def _saved(context: PlannerContext, straggler: Straggler, target: EngineView) -> float:
    """Seconds by which a straggler is expected to end sooner if it moves to this engine.

    From a site, the request and the tokens that it has cross the link; its answer would have crossed it later.
    """
    step = target.step_seconds(straggler.context, more=1)
    again = PREFILL_SHARE * straggler.context * step / (target.taken + 1)
    saved = straggler.seconds - straggler.remaining * step - again - HANDOVER_SECONDS
    if not straggler.source.site:
        return saved
    site = context.transfers.of(straggler.source.site)
    answer = transfer_seconds(site, straggler.context + straggler.remaining) - site.costs.latency
    return saved + answer - transfer_seconds(site, straggler.context)


def _may_move(context: PlannerContext, straggler: Straggler, target: EngineView) -> bool:
    return (
        straggler.source is not target
        and straggler.source.reachable
        and straggler.is_valid
        and _continues(context, straggler.source, target)
        and not _yields(context, straggler)
    )


def _continues(context: PlannerContext, source: EngineView, target: EngineView) -> bool:
    """Whether `target` may continue what `source` generates: versions never go back within a trajectory."""
    if context.swaps_on_its_own:
        return target.version >= source.version
    return target.version == source.version


def _yields(context: PlannerContext, straggler: Straggler) -> bool:
    """Whether a trajectory that waits for its first engine has more need of the slot."""
    first = context.state.waiting.first
    if first is None or first.step > straggler.step:
        return False
    estimate = context.lengths.known.get(first.prompt)
    return estimate is None or estimate.mean > straggler.remaining
