"""Who is alive, and what becomes of the work of an engine that is not.

Leases run on the coordinator's own heartbeats as they come back through the store: neither a frozen coordinator
nor a lost connection can declare engines dead.
"""

from __future__ import annotations

from rljob_core.actions import RetireEngine, SendToEngine, SignalSeen
from rljob_core.dispatch import EngineView
from rljob_core.messages import Cancel, EngineSignal, GenerationEnded
from rljob_core.planner.desk import Desk
from rljob_core.trajectory import State, is_evaluation

LEASE_BEATS = 10
"""Own heartbeats (one a second) after which an engine that sent none is lost."""


def take_signal(desk: Desk, seen: SignalSeen) -> None:
    """An engine's heartbeat, or the removal of its key."""
    signal = seen.signal
    if signal is None:
        lose(desk, seen.engine, "EngineLost")
        return
    view = desk.engines.get(signal.engine)
    if view is None:
        view = _welcome(desk, signal)
    desk.leases[signal.engine] = 0
    view.version = signal.version
    view.draining = signal.draining
    desk.figures.tokens(signal.engine, signal.tokens)


def _welcome(desk: Desk, signal: EngineSignal) -> EngineView:
    # Another instance under the same pod name: the one before it is dead, no lease need run out.
    pod = _pod(signal.engine)
    for other in _known(desk):
        if other != signal.engine and _pod(other) == pod:
            lose(desk, other, "EngineLost")
    held = sum(s.state is State.GENERATING and s.engine == signal.engine for s in desk.state.siblings())
    view = EngineView(signal.engine, signal.pool, signal.slots, signal.version, assigned=held)
    desk.engines[signal.engine] = view
    if signal.engine in desk.lost:
        # It was silent for so long that its work went to others; it must not go on with it beside the new.
        desk.lost.discard(signal.engine)
        desk.act(SendToEngine(signal.engine, (Cancel(()),)))
    return view


def take_heartbeat(desk: Desk) -> None:
    """The coordinator's own heartbeat came back.

    An engine known from the ledger alone (after a restart) has its whole lease from the first beat on.
    """
    for engine in _known(desk):
        desk.leases[engine] = desk.leases.get(engine, 0) + 1
        if desk.leases[engine] > LEASE_BEATS:
            lose(desk, engine, "EngineLost")


def lose(desk: Desk, engine: str, reason: str) -> None:
    """An engine is gone: what it was generating is generated again, in the same entries."""
    known = desk.engines.pop(engine, None) is not None
    desk.leases.pop(engine, None)
    for sibling in list(desk.state.siblings()):
        if sibling.state is State.GENERATING and sibling.engine == engine:
            desk.reset(sibling, reason, failure=False)
            known = True
    if desk.evaluation is not None:
        desk.evaluation.lose(engine)
    if known:
        desk.lost.add(engine)
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
    if sibling is None or sibling.attempt != event.attempt or sibling.state is not State.GENERATING:
        return
    desk.free_slot(sibling.engine)
    if event.failure:
        desk.fail(sibling, event.reason, detail=event.detail)
    else:
        desk.reset(sibling, event.reason, failure=False, detail=event.detail)


def _known(desk: Desk) -> list[str]:
    generating = {s.engine for s in desk.state.siblings() if s.state is State.GENERATING}
    return sorted(generating | desk.engines.keys())


def _pod(engine: str) -> str:
    return engine.rpartition(".")[0]
