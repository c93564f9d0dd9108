"""Who is alive, and what becomes of the work of an engine that is not.

Leases run on the coordinator's own heartbeats as they come back through the store: neither a frozen coordinator
nor a lost connection can declare engines dead.
"""

from __future__ import annotations

from rljob_core.actions import RetireEngine, SignalSeen
from rljob_core.dispatch import EngineView
from rljob_core.messages import EngineGone, EngineSignal, GenerationEnded
from rljob_core.planner import dispatching, migration, training
from rljob_core.planner.context import Desk
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


def take_signal(desk: Desk, seen: SignalSeen) -> None:
    """An engine's heartbeat, or the removal of its key."""
    signal = seen.signal
    if signal is None:
        if seen.engine not in desk.leaving:
            lose(desk, seen.engine, "EngineLost")
        return
    view = desk.engines.get(signal.engine)
    if view is None:
        if _is_outlived(desk, signal):
            # Its last word came late; its key would be read again and again.
            desk.act(RetireEngine(signal.engine))
            return
        view = _welcome(desk, signal)
    desk.leases[signal.engine] = 0
    desk.hear_of(signal.epoch)
    view.version = signal.version
    view.held = signal.held
    view.draining = signal.draining or signal.engine in desk.leaving
    view.stuck = signal.stuck
    desk.figures.tokens(signal.engine, signal.tokens)


def _welcome(desk: Desk, signal: EngineSignal) -> EngineView:
    # Another instance under the same pod name: the one before it is dead, no lease need run out. Of one that drained
    # it will be heard what it has stored.
    for other in _of_pod(desk, signal.engine):
        if not other.draining:
            lose(desk, other.engine, "EngineLost")
    held = len(desk.state.generating.get(signal.engine, ()))
    view = EngineView(signal.engine, signal.pool, signal.slots, signal.version, assigned=held)
    view.started = signal.started
    desk.engines[signal.engine] = view
    # It was silent for so long that its work went to others; it need not go on with it beside them.
    desk.cancel(signal.engine, desk.lost.pop(signal.engine, []))
    return view


def _of_pod(desk: Desk, engine: str) -> list[EngineView]:
    """Instances that have signalled, of an engine's pod."""
    return [view for view in desk.engines.values() if _pod(view.engine) == _pod(engine)]


def _is_outlived(desk: Desk, signal: EngineSignal) -> bool:
    return any(view.started > signal.started for view in _of_pod(desk, signal.engine))


def take_heartbeat(desk: Desk) -> None:
    """The coordinator's own heartbeat came back.

    An engine known from the ledger alone (after a restart) has its whole lease from the first beat on.
    """
    for engine in _known(desk):
        desk.leases[engine] = desk.leases.get(engine, 0) + 1
        # All keys were read within a beat: whoever has none, and whose pod has another instance, is dead.
        replaced = engine not in desk.engines and _of_pod(desk, engine)
        if desk.leases[engine] > (REPLACED_BEATS if replaced else LEASE_BEATS):
            lose(desk, engine, "EngineLost")
    behind = [view for view in desk.engines.values() if _is_behind(desk, view)]
    for view in behind:
        view.beats_behind = 0
        dispatching.repeat(desk, view.engine)
    _doubt_weights(desk)
    desk.beats += 1
    if behind or desk.beats % ANNOUNCE_BEATS == 0:
        training.announce(desk)


def _doubt_weights(desk: Desk) -> None:
    """End the job if no engine can use the newest weights: nothing would ever be generated again.

    A store that does not answer is another matter: it is waited for.
    """
    views, version = desk.engines.values(), desk.state.version
    rejected = [v.stuck for v in views if v.version < version and v.stuck.startswith(REJECTED)]
    desk.rejected_beats = desk.rejected_beats + 1 if rejected and len(rejected) == len(views) else 0
    if desk.rejected_beats > REJECTED_BEATS:
        message = (
            f"no engine can use the weights of version {version}: {rejected[0]}. Going back gives up what came after: "
            f"rljob run … --resume --from-version {version - 1}, or an earlier one"
        )
        desk.finish(JobFinished("Failed", message))


def _is_behind(desk: Desk, view: EngineView) -> bool:
    """Whether what it was told seems lost: it has had less work, or older weights, than it was sent for a while.

    On a store that loses nothing this is only ever so by chance, and to be told twice does no harm.
    """
    lags = view.version < desk.state.version and not view.draining
    view.beats_behind = view.beats_behind + 1 if lags or view.held < view.assigned else 0
    return view.beats_behind > PATIENCE_BEATS


def take_gone(desk: Desk, event: EngineGone) -> None:
    """An engine has drained: once its last results were seen, the rest of what it had goes on elsewhere."""
    desk.leaving[event.engine] = event.stored
    view = desk.engines.get(event.engine)
    if view is not None:
        view.draining = True
    let_leave(desk)


def let_leave(desk: Desk) -> None:
    """Take leave of engines all of whose results were seen; of others when their leases end."""
    for engine, stored in list(desk.leaving.items()):
        if stored <= desk.payloads.newest or not desk.state.generating_at(engine):
            lose(desk, engine, "Drained")


def lose(desk: Desk, engine: str, reason: str) -> None:
    """An engine is gone: what it was generating goes on elsewhere, or is generated again, in the same entries."""
    known = desk.engines.pop(engine, None) is not None
    desk.leases.pop(engine, None)
    desk.leaving.pop(engine, None)
    siblings = desk.state.generating_at(engine)
    had = [(s.id, s.attempt) for s in siblings]
    for sibling in siblings:
        desk.reset(sibling, reason, failure=False, carries=migration.carries(desk))
        known = True
    if desk.evaluation is not None:
        desk.evaluation.lose(engine)
    if known:
        desk.lost[engine] = had
        desk.figures.engine_gone(engine)
        desk.act(RetireEngine(engine))


def take_generation_ended(desk: Desk, event: GenerationEnded) -> None:
    """An engine gives one trajectory up."""
    if is_evaluation(event.trajectory):
        run = desk.evaluation
        if run is not None and run.holds(event.trajectory, event.attempt):
            desk.free_slot(event.engine)
            attempts = desk.spec.pipeline.max_attempts
            run.retry(event.trajectory, max_attempts=attempts, failure=event.failure)
        return
    sibling = desk.state.sibling(event.trajectory)
    if sibling is None or sibling.state is not State.GENERATING:
        return
    if (sibling.attempt, sibling.engine) != (event.attempt, event.engine):
        return
    desk.free_slot(sibling.engine)
    if event.failure:
        desk.fail(sibling, event.reason, detail=event.detail)
    else:
        carries = event.reason in NOT_BEGUN and migration.carries(desk)
        desk.reset(sibling, event.reason, failure=False, detail=event.detail, carries=carries)


def _known(desk: Desk) -> list[str]:
    return sorted(desk.state.generating.keys() | desk.engines.keys())


def _pod(engine: str) -> str:
    return engine.rpartition(".")[0]
