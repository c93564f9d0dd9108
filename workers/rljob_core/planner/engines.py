"""React to engines' signals; declare engines lost and give their work to others.

An engine is lost when its process is reported dead, when its lease runs out, when its signal is removed, when another
instance of its pod signals, or when it has drained and its last results were read. Its trajectories keep their groups'
entries and are generated again, or resume from their progress, on other engines.
"""

from __future__ import annotations

from rljob_core.actions import RetireEngine, SignalSeen
from rljob_core.job_state import ENGINE_LOST
from rljob_core.messages import LONGEST, RELEASED, EngineDied, EngineGone, EngineSignal, GenerationEnded
from rljob_core.planner import (
    attributed_deaths,
    dispatch,
    endings,
    migration,
    prime_suspect,
    suspects,
    training,
)
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.evaluation import prompt_of
from rljob_core.planner.message_refcounts import AttemptKey
from rljob_core.records import JobFinished
from rljob_core.trajectory import State, group_of, is_evaluation
from rljob_core.words import is_word

RESEND_HEARTBEATS = 5
"""Own heartbeats for which an engine may hold less, or older weights, than it was sent before that is sent again."""
ANNOUNCE_HEARTBEATS = 30
"""Own heartbeats after which the newest version is announced again, for engines that have not signalled yet."""
REJECTED_HEARTBEATS = 120
"""Own heartbeats for which all engines may reject the newest weights: a file system may show files late."""
REJECTED = "WeightsRejected"
"""Why an engine is stuck whose newest weights do not match their manifest."""
UNNAMED = "EngineFailed"
"""Reason of an end for which an engine gives no word that could be counted."""
CARRIED = frozenset({REJECTED, "WeightsUnavailable", RELEASED})
"""Why an engine gives back what another engine may continue: it has not begun it, or was asked to release it."""


def on_signal(context: PlannerContext, seen: SignalSeen) -> None:
    """An engine's heartbeat, or the removal of its key."""
    signal, liveness = seen.signal, context.liveness
    if signal is None:
        if liveness.is_echo(seen.engine):
            return
        if seen.engine not in liveness.leaving:
            lose_engine(context, seen.engine, "its signal was removed")
        return
    view = liveness.engines.get(signal.engine)
    if view is None:
        if _is_superseded(context, signal):
            # Its last signal came late. Left in the bucket, the key would be read again and again.
            _remove_signal(context, signal.engine)
            return
        view = _register(context, signal)
    liveness.renew(signal.engine)
    context.check_epoch(signal.epoch)
    liveness.load.remove(view)
    view.version = signal.version
    view.held = signal.held
    view.draining = signal.draining or signal.engine in liveness.leaving
    view.stuck = signal.stuck
    view.profile = signal.profile
    view.running, view.context, view.kv_tokens = signal.running, signal.context, signal.kv_tokens
    view.longest = signal.longest[:LONGEST]
    liveness.load.add(view)
    liveness.has_changed(view)
    context.metrics.tokens(signal.engine, signal.tokens)
    context.pool_speeds.heard(signal, context.now)


def _register(context: PlannerContext, signal: EngineSignal) -> EngineView:
    # Another instance under the same pod name is dead: no lease need run out. One that drained has announced what it
    # stored, and is removed once that was read.
    for other in context.liveness.of_pod(signal.engine):
        if not other.draining:
            lose_engine(context, other.engine, f"{signal.engine} has taken its place")
    assigned = len(context.state.generating.get(signal.engine, ()))
    view = EngineView(signal.engine, signal.pool, signal.slots, signal.version, assigned=assigned)
    view.started = signal.started
    context.cohorts.awaited_since = None
    context.liveness.engines[signal.engine] = view
    # If it was declared lost before, other engines have its work now.
    endings.cancel(context, signal.engine, context.liveness.removed.pop(signal.engine, []))
    return view


def _is_superseded(context: PlannerContext, signal: EngineSignal) -> bool:
    """Whether the engine is known to be dead: by a report, or because a later instance of its pod has signalled."""
    if signal.engine in context.liveness.dead:
        return True
    return any(view.started > signal.started for view in context.liveness.of_pod(signal.engine))


def on_heartbeat(context: PlannerContext) -> None:
    """The coordinator's own heartbeat came back: leases run on, and what seems lost is sent again.

    An engine that is known from the ledger alone (after a restart) has its whole lease from the first heartbeat on.
    """
    liveness = context.liveness
    for engine in sorted(context.state.generating.keys() | liveness.engines.keys()):
        if liveness.lease_ends(engine):
            lose_engine(context, engine, "its heartbeats ended")
    behind = [view for view in liveness.engines.values() if _is_behind(context, view)]
    for view in behind:
        view.heartbeats_behind = 0
        dispatch.resend(context, view.engine)
    _check_rejected_weights(context)
    liveness.heartbeats += 1
    if behind or liveness.heartbeats % ANNOUNCE_HEARTBEATS == 0:
        training.announce(context)


def _check_rejected_weights(context: PlannerContext) -> None:
    """End the job if every engine has rejected the newest weights for long: nothing would ever be generated again.

    Weights that a store does not deliver are another matter: engines wait for the store.
    """
    liveness, version = context.liveness, context.state.version
    views = liveness.engines.values()
    rejected = [v.stuck for v in views if v.version < version and v.stuck.startswith(REJECTED)]
    by_all = bool(rejected) and len(rejected) == len(views)
    liveness.rejected_heartbeats = liveness.rejected_heartbeats + 1 if by_all else 0
    if liveness.rejected_heartbeats > REJECTED_HEARTBEATS:
        message = (
            f"no engine can use the weights of version {version}: {rejected[0]}. Going back gives up what came after: "
            f"rljob run … --resume --from-version {version - 1}, or an earlier one"
        )
        endings.finish_job(context, JobFinished("Failed", message))


def _is_behind(context: PlannerContext, view: EngineView) -> bool:
    """Whether an engine has held less work, or older weights, than it was sent for so long that a message seems lost.

    On a store that loses nothing this happens only by chance, and a message that is sent twice does no harm.
    """
    lags = view.version < context.state.version and not view.draining
    view.heartbeats_behind = view.heartbeats_behind + 1 if lags or view.held < view.assigned else 0
    return view.heartbeats_behind > RESEND_HEARTBEATS


def on_engine_died(context: PlannerContext, event: EngineDied) -> None:
    """An engine's process has ended: others take its work now; one that had drained has handed its work over."""
    liveness = context.liveness
    liveness.dead.add(event.engine)
    if event.engine not in liveness.leaving:
        lose_engine(context, event.engine, event.cause, beginning=event.beginning)


def on_engine_gone(context: PlannerContext, event: EngineGone) -> None:
    """An engine has drained: once its last results were read, its other trajectories resume on other engines."""
    context.liveness.leaving[event.engine] = event.stored
    view = context.liveness.engines.get(event.engine)
    if view is not None:
        view.draining = True
    remove_drained(context)


def remove_drained(context: PlannerContext) -> None:
    """Remove each drained engine whose results were all read; the others go when their leases run out."""
    for engine, stored in list(context.liveness.leaving.items()):
        if stored <= context.messages.payloads.newest or not context.state.generating_at(engine):
            _remove_drained(context, engine)


def _remove_drained(context: PlannerContext, engine: str) -> None:
    siblings = context.state.generating_at(engine)
    had = [(s.id, s.attempt) for s in siblings]
    for sibling in siblings:
        endings.reset_sibling(context, sibling, "Drained", failure=False, carries=migration.carries(context))
    if (run := context.evaluation) is not None:
        for answer in run.answers_at(engine):
            run.retry(answer, max_attempts=0, failure=False)
    _retire(context, engine, had)


def lose_engine(context: PlannerContext, engine: str, cause: str, *, beginning: str = "") -> None:
    """Declare an engine dead: its trajectories resume, or are generated again, in the same buffer entries.

    Args:
        cause: what is known of its end, for people.
        beginning: see `EngineDied`.
    """
    siblings, run = context.state.generating_at(engine), context.evaluation
    answers = run.answers_at(engine) if run is not None else []
    had, held = [(s.id, s.attempt) for s in siblings], [*(s.id for s in siblings), *answers]
    alone, convicted = len(set(map(group_of, held))) == 1, False
    tried = [s for s in siblings if alone and suspects.is_tried(context, s)]
    for sibling in siblings:
        if sibling in tried:
            earlier = attributed_deaths.earlier_failures(context, sibling)
            convicted = endings.fail_sibling(
                context, sibling, ENGINE_LOST, detail=cause, died=True, earlier=earlier
            )
            if convicted:
                break
            continue
        carries = migration.carries(context)
        endings.reset_sibling(
            context, sibling, ENGINE_LOST, failure=False, detail=cause, carries=carries, died=True
        )
    for answer in (answer for answer in answers if run is not None and answer in run.attempts):
        convicted = _lose_answer(context, answer, failure=alone) or convicted
    if tried and not convicted:
        prime_suspect.on_failed_alone(context, tried, cause)
    suspects.on_engine_lost(context, engine, held, beginning=beginning, convicted=convicted)
    _retire(context, engine, had)
    suspects.recall_siblings(context, engine, siblings)


def _lose_answer(context: PlannerContext, answer: str, *, failure: bool) -> bool:
    """Have an answer generated again after its engine's death; True if its prompt is given up instead."""
    run, attempts = context.evaluation, context.spec.pipeline.max_attempts
    if run is None:
        return False
    failure = failure and run.is_suspect(answer)
    if not failure or run.failures.get(answer, 0) + 1 < attempts:
        run.deaths[answer] = run.deaths.get(answer, 0) + 1
        run.retry(answer, max_attempts=attempts, failure=failure)
        return False
    for other, attempt, engine in run.give_up(prompt_of(answer)):
        context.messages.payloads.release([(other, attempt)])
        if engine and other != answer:
            context.liveness.free_slot(engine)
            endings.cancel(context, engine, [(other, attempt)])
    return True


def _retire(context: PlannerContext, engine: str, had: list[AttemptKey]) -> None:
    if context.liveness.forget(engine) or had:
        context.liveness.removed[engine] = had
        context.metrics.engine_gone(engine)
        context.pool_speeds.forget(engine)
        _remove_signal(context, engine)


def _remove_signal(context: PlannerContext, engine: str) -> None:
    context.liveness.retired.add(engine)
    context.act(RetireEngine(engine))


def on_generation_ended(context: PlannerContext, event: GenerationEnded) -> None:
    """An engine gives one trajectory up, because it failed or because the engine hands it back."""
    if is_evaluation(event.trajectory):
        run = context.evaluation
        if run is not None and run.holds(event.trajectory, event.attempt):
            context.liveness.free_slot(event.engine)
            attempts = context.spec.pipeline.max_attempts
            run.retry(event.trajectory, max_attempts=attempts, failure=event.failure)
        return
    sibling = context.state.sibling(event.trajectory)
    if sibling is None or sibling.state is not State.GENERATING:
        return
    if (sibling.attempt, sibling.engine) != (event.attempt, event.engine):
        return
    context.liveness.free_slot(sibling.engine)
    reason, detail = event.reason, event.detail
    if not is_word(reason):
        reason, detail = UNNAMED, f"{reason}: {detail}"
    if event.failure:
        endings.fail_sibling(context, sibling, reason, detail=detail)
    else:
        carries = reason in CARRIED and migration.carries(context)
        endings.reset_sibling(context, sibling, reason, failure=False, detail=detail, carries=carries)
