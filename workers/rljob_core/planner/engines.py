"""Who is alive, and what becomes of the work of an engine that is not.

Leases run on the coordinator's own heartbeats as they come back through the store: neither a frozen coordinator
nor a lost connection can declare engines dead.
"""

from __future__ import annotations

from rljob_core.actions import RetireEngine, SignalSeen
from rljob_core.dispatch import EngineView
from rljob_core.messages import EngineGone, EngineSignal, GenerationEnded
from rljob_core.planner import dispatching, migration, training
from rljob_core.planner.context import PlannerContext
from rljob_core.records import JobFinished
from rljob_core.trajectory import State, is_evaluation

LEASE_BEATS = 10
"""Own heartbeats (one a second) after which an engine that sent none is lost."""
REPLACED_BEATS = 1
"""The same for one that this coordinator has never heard, while it hears another instance of the same pod."""
PATIENCE_BEATS = 5
"""Own heartbeats for which an engine may hold less than it was sent, or lag behind, before it is told again."""
REJECTED = "WeightsRejected"
NOT_BEGUN = frozenset({REJECTED, "WeightsUnavailable"})
"""Why an engine gives back what it has not begun."""
REJECTED_BEATS = 120
"""Own heartbeats for which all engines may find the newest weights damaged: a file system may show files late."""
ANNOUNCE_BEATS = 30
"""Own heartbeats after which the newest version is announced again, to engines that have not said anything yet."""


def on_signal(context: PlannerContext, seen: SignalSeen) -> None:
    """An engine's heartbeat, or the removal of its key."""
    signal = seen.signal
    if signal is None:
        if seen.engine not in context.leaving:
            lose(context, seen.engine, "EngineLost")
        return
    view = context.engines.get(signal.engine)
    if view is None:
        if _is_outlived(context, signal):
            # Its last word came late; its key would be read again and again.
            context.act(RetireEngine(signal.engine))
            return
        view = _welcome(context, signal)
    context.leases[signal.engine] = 0
    context.hear_of(signal.epoch)
    view.version = signal.version
    view.held = signal.held
    view.draining = signal.draining or signal.engine in context.leaving
    view.stuck = signal.stuck
    context.figures.tokens(signal.engine, signal.tokens)


def _welcome(context: PlannerContext, signal: EngineSignal) -> EngineView:
    # Another instance under the same pod name: the one before it is dead, no lease need run out. Of one that drained
    # it will be heard what it has stored.
    for other in _of_pod(context, signal.engine):
        if not other.draining:
            lose(context, other.engine, "EngineLost")
    held = len(context.state.generating.get(signal.engine, ()))
    view = EngineView(signal.engine, signal.pool, signal.slots, signal.version, assigned=held)
    view.started = signal.started
    context.engines[signal.engine] = view
    # It was silent for so long that its work went to others; it need not go on with it beside them.
    context.cancel(signal.engine, context.lost.pop(signal.engine, []))
    return view


def _of_pod(context: PlannerContext, engine: str) -> list[EngineView]:
    """Instances that have signalled, of an engine's pod."""
    return [view for view in context.engines.values() if _pod(view.engine) == _pod(engine)]


def _is_outlived(context: PlannerContext, signal: EngineSignal) -> bool:
    return any(view.started > signal.started for view in _of_pod(context, signal.engine))


def on_heartbeat(context: PlannerContext) -> None:
    """The coordinator's own heartbeat came back.

    An engine known from the ledger alone (after a restart) has its whole lease from the first beat on.
    """
    for engine in _known(context):
        context.leases[engine] = context.leases.get(engine, 0) + 1
        # All keys were read within a beat: whoever has none, and whose pod has another instance, is dead.
        replaced = engine not in context.engines and _of_pod(context, engine)
        if context.leases[engine] > (REPLACED_BEATS if replaced else LEASE_BEATS):
            lose(context, engine, "EngineLost")
    behind = [view for view in context.engines.values() if _is_behind(context, view)]
    for view in behind:
        view.beats_behind = 0
        dispatching.repeat(context, view.engine)
    _doubt_weights(context)
    context.beats += 1
    if behind or context.beats % ANNOUNCE_BEATS == 0:
        training.announce(context)


def _doubt_weights(context: PlannerContext) -> None:
    """End the job if no engine can use the newest weights: nothing would ever be generated again.

    A store that does not answer is another matter: it is waited for.
    """
    views, version = context.engines.values(), context.state.version
    rejected = [v.stuck for v in views if v.version < version and v.stuck.startswith(REJECTED)]
    context.rejected_beats = context.rejected_beats + 1 if rejected and len(rejected) == len(views) else 0
    if context.rejected_beats > REJECTED_BEATS:
        message = (
            f"no engine can use the weights of version {version}: {rejected[0]}. Going back gives up what came after: "
            f"rljob run … --resume --from-version {version - 1}, or an earlier one"
        )
        context.finish(JobFinished("Failed", message))


def _is_behind(context: PlannerContext, view: EngineView) -> bool:
    """Whether what it was told seems lost: it has had less work, or older weights, than it was sent for a while.

    On a store that loses nothing this is only ever so by chance, and to be told twice does no harm.
    """
    lags = view.version < context.state.version and not view.draining
    view.beats_behind = view.beats_behind + 1 if lags or view.held < view.assigned else 0
    return view.beats_behind > PATIENCE_BEATS


def on_engine_gone(context: PlannerContext, event: EngineGone) -> None:
    """An engine has drained: once its last results were seen, the rest of what it had goes on elsewhere."""
    context.leaving[event.engine] = event.stored
    view = context.engines.get(event.engine)
    if view is not None:
        view.draining = True
    let_leave(context)


def let_leave(context: PlannerContext) -> None:
    """Take leave of engines all of whose results were seen; of others when their leases end."""
    for engine, stored in list(context.leaving.items()):
        if stored <= context.payloads.newest or not context.state.generating_at(engine):
            lose(context, engine, "Drained")


def lose(context: PlannerContext, engine: str, reason: str) -> None:
    """An engine is gone: what it was generating goes on elsewhere, or is generated again, in the same entries."""
    known = context.engines.pop(engine, None) is not None
    context.leases.pop(engine, None)
    context.leaving.pop(engine, None)
    siblings = context.state.generating_at(engine)
    had = [(s.id, s.attempt) for s in siblings]
    for sibling in siblings:
        context.reset(sibling, reason, failure=False, carries=migration.carries(context))
        known = True
    if context.evaluation is not None:
        context.evaluation.lose(engine)
    if known:
        context.lost[engine] = had
        context.figures.engine_gone(engine)
        context.act(RetireEngine(engine))


def on_generation_ended(context: PlannerContext, event: GenerationEnded) -> None:
    """An engine gives one trajectory up."""
    if is_evaluation(event.trajectory):
        run = context.evaluation
        if run is not None and run.holds(event.trajectory, event.attempt):
            context.free_slot(event.engine)
            attempts = context.spec.pipeline.max_attempts
            run.retry(event.trajectory, max_attempts=attempts, failure=event.failure)
        return
    sibling = context.state.sibling(event.trajectory)
    if sibling is None or sibling.state is not State.GENERATING:
        return
    if (sibling.attempt, sibling.engine) != (event.attempt, event.engine):
        return
    context.free_slot(sibling.engine)
    if event.failure:
        context.fail(sibling, event.reason, detail=event.detail)
    else:
        carries = event.reason in NOT_BEGUN and migration.carries(context)
        context.reset(sibling, event.reason, failure=False, detail=event.detail, carries=carries)


def _known(context: PlannerContext) -> list[str]:
    return sorted(context.state.generating.keys() | context.engines.keys())


def _pod(engine: str) -> str:
    return engine.rpartition(".")[0]
