"""React to engines' signals; declare engines lost and give their work to others.

An engine is lost when its process is reported dead, when its lease runs out, when its signal is removed, when another
instance of its pod signals, or when it has drained and its last results were read. Its trajectories keep their groups'
entries and are generated again, or resume from their progress, on other engines.
"""

from __future__ import annotations

from rljob_core.actions import EngineDrained, RetireEngine, SignalSeen, SiteMarkSeen
from rljob_core.job_state import ENGINE_LOST
from rljob_core.messages import (
    LONGEST,
    REJECTED,
    RELEASED,
    UNAVAILABLE,
    EngineDied,
    EngineGone,
    EngineSignal,
    GenerationEnded,
)
from rljob_core.planner import (
    early_trial,
    endings,
    migration,
    quarantine,
    site_marks,
    sites,
)
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.evaluation import prompt_of
from rljob_core.planner.metrics_line import publish
from rljob_core.planner.stored_messages import AttemptKey
from rljob_core.trajectory import State, group_of, is_evaluation
from rljob_core.words import is_word

UNNAMED = "EngineFailed"
"""Reason of an end for which an engine gives no word that could be counted."""
_KILLED = "EngineLost: engines died while they generated its answers"
"""What a held-out prompt is given up for if its answers kill engines."""
CARRIED = frozenset({REJECTED, UNAVAILABLE, RELEASED})
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
            _remove_signal(context, signal.engine, signal.site)
            return
        if not context.sites.may_meet(signal.site):
            return  # no job has engines at so many sites
        context.sites.meet(signal.site)
        view = _register(context, signal)
    liveness.leases[signal.engine] = 0
    context.check_epoch(signal.epoch)
    liveness.load.remove(view)
    view.version = signal.version
    view.held = signal.held
    view.draining = signal.draining or signal.engine in liveness.leaving
    view.stuck, view.stuck_detail = signal.stuck, signal.stuck_detail
    view.profile = signal.profile
    view.running, view.context, view.kv_tokens = signal.running, signal.context, signal.kv_tokens
    view.longest = signal.longest[:LONGEST]
    view.announced = signal.announced
    view.in_environment = min(signal.in_environment, context.most_in_environment(view.slots))
    liveness.load.add(view)
    liveness.has_changed(view)
    context.metrics.heard(signal)
    context.pool_speeds.heard(signal, context.now)
    if context.transfers.heard(view, signal, context.now):
        publish(context)


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
    sites.place(context, view, signal)
    context.sites.losses.pop(signal.engine, None)  # it lives
    context.liveness.engines[signal.engine] = view
    # If it was declared lost before, other engines have its work now.
    endings.cancel(context, signal.engine, context.liveness.removed.pop(signal.engine, []), site=view.site)
    return view


def _is_superseded(context: PlannerContext, signal: EngineSignal) -> bool:
    """Whether the engine is known to be dead: by a report, or because a later instance of its pod has signalled."""
    if signal.engine in context.liveness.dead:
        return True
    return any(view.started > signal.started for view in context.liveness.of_pod(signal.engine))


def on_engine_died(context: PlannerContext, event: EngineDied) -> None:
    """An engine's process has ended: others take its work now; one that had drained has handed its work over."""
    liveness = context.liveness
    liveness.dead.add(event.engine)
    if event.engine not in liveness.leaving:
        lose_engine(context, event.engine, event.cause, event)


def on_engine_gone(context: PlannerContext, event: EngineGone) -> None:
    """An engine has drained: once its last results were read, its other trajectories resume on other engines.

    Its last word may have been read before, perhaps by an earlier coordinator: then it has none.
    """
    context.liveness.leaving[event.engine] = None
    view = context.liveness.engines.get(event.engine)
    if view is not None:
        view.draining = True
    remove_drained(context)


def on_engine_drained(context: PlannerContext, drained: EngineDrained) -> None:
    """All results of an engine that has drained were read: its other trajectories resume on other engines."""
    context.messages.payloads.add(drained.sequence, [])
    hand_over(context, drained.engine, "Drained")


def remove_drained(context: PlannerContext) -> None:
    """Remove each drained engine that has no work; the others go at their last word, or when their leases run out."""
    for engine in list(context.liveness.leaving):
        is_here = not context.site_of(engine)
        has_work = context.state.generating_at(engine) if is_here else context.has_work(engine)
        if not has_work:
            hand_over(context, engine, "Drained")


def hand_over(context: PlannerContext, engine: str, reason: str) -> None:
    """Have others generate what an engine has, which has not died, and forget the engine."""
    siblings, site = context.state.generating_at(engine), context.site_of(engine)
    had = [(s.id, s.attempt) for s in siblings]
    for sibling in siblings:
        endings.reset_sibling(context, sibling, reason, failure=False, carries=migration.carries(context))
    for answer in context.evaluation.answers_at(engine):
        context.evaluation.retry(answer)
    _retire(context, engine, had, site)


def lose_drained(context: PlannerContext, engine: str) -> None:
    """Hand over what an engine at a site has that has drained, once everything is here that it had stored."""
    if not site_marks.await_results(context, engine, drained=True):
        hand_over(context, engine, "Drained")


def lose_engine(context: PlannerContext, engine: str, cause: str, report: EngineDied | None = None) -> None:
    """Declare an engine dead, at a site once everything is here that it had stored.

    Args:
        cause: what is known of its end, for people.
        report: of the process that watched it, if there is one.
    """
    alone = context.liveness.ended_alone(engine)
    context.liveness.note_loss(engine)
    if not site_marks.await_results(context, engine, cause=cause, report=report, alone=alone):
        _lose_now(context, engine, cause, report, ended_alone=alone)
    elif engine in context.liveness.dead:
        # The report is read once. To the next coordinator, the last signal would say that the engine lives.
        _remove_signal(context, engine, context.site_of(engine))


def end_losses(context: PlannerContext, site: str) -> None:
    """Act on the losses at a site whose last results are here."""
    for engine, loss in site_marks.losses_over(context, site).items():
        if loss.drained:
            hand_over(context, engine, "Drained")
        else:
            _lose_now(context, engine, loss.cause, loss.report, ended_alone=loss.alone)


def on_site_mark_seen(context: PlannerContext, seen: SiteMarkSeen) -> None:
    """Everything is here that a site had stored when a mark was sent by way of it."""
    site_marks.on_mark_seen(context, seen)
    if seen.site in context.sites.links:
        end_losses(context, seen.site)


def _lose_now(
    context: PlannerContext, engine: str, cause: str, report: EngineDied | None, *, ended_alone: bool
) -> None:
    """Declare an engine dead: its trajectories resume, or are generated again, in the same buffer entries."""
    siblings, site = context.state.generating_at(engine), context.site_of(engine)
    answers = context.evaluation.answers_at(engine)
    had, held = [(s.id, s.attempt) for s in siblings], [*(s.id for s in siblings), *answers]
    alone, explained = len(set(map(group_of, held))) == 1, False
    tried = [s for s in siblings if alone and quarantine.is_tried(context, s)]
    tried = [s for s in tried if ended_alone or not quarantine.may_be_excused(context, s.deaths)]
    for sibling in siblings:
        if sibling in tried:
            earlier = early_trial.earlier_failures(context, sibling)
            explained = endings.fail_sibling(
                context, sibling, ENGINE_LOST, detail=cause, died=True, earlier=earlier
            )
            if explained:
                break
            continue
        carries = migration.carries(context)
        endings.reset_sibling(
            context, sibling, ENGINE_LOST, failure=False, detail=cause, carries=carries, died=True
        )
    for answer in (answer for answer in answers if answer in context.evaluation.attempts):
        deaths = context.evaluation.deaths.get(answer, 0)
        counts = ended_alone or not quarantine.may_be_excused(context, deaths)
        explained = _lose_answer(context, answer, failure=alone and counts) or explained
    if tried and not explained:
        early_trial.on_failed_alone(context, tried, cause)
    quarantine.on_engine_lost(context, engine, held, report, explained=explained)
    _retire(context, engine, had, site)
    quarantine.recall_siblings(context, engine, siblings)


def _lose_answer(context: PlannerContext, answer: str, *, failure: bool) -> bool:
    """Have an answer generated again after its engine's death; True if its prompt is given up instead."""
    run, attempts = context.evaluation, context.spec.pipeline.max_attempts
    failure = failure and run.is_quarantined(answer)
    if not failure or run.failures.get(answer, 0) + 1 < attempts:
        run.deaths[answer] = run.deaths.get(answer, 0) + 1
        run.retry(answer, max_attempts=attempts, failure=_KILLED if failure else "")
        return False
    endings.give_up_answers(context, prompt_of(answer), _KILLED, dead=answer)
    return True


def _retire(context: PlannerContext, engine: str, had: list[AttemptKey], site: str) -> None:
    had += context.sites.pop_cancelled(engine)
    was_awaited = context.sites.losses.pop(engine, None) is not None
    if context.liveness.forget(engine) or had or was_awaited:
        context.liveness.removed[engine] = had
        context.metrics.engine_gone(engine)
        context.pool_speeds.forget(engine)
        _remove_signal(context, engine, site)


def _remove_signal(context: PlannerContext, engine: str, site: str) -> None:
    context.liveness.retired.add(engine)
    context.act(RetireEngine(engine, site))


def on_generation_ended(context: PlannerContext, event: GenerationEnded) -> None:
    """An engine gives one trajectory up, because it failed or because the engine hands it back."""
    if is_evaluation(event.trajectory):
        run = context.evaluation
        if run.holds(event.trajectory, event.attempt):
            context.liveness.free_slot(event.engine)
            attempts = context.spec.pipeline.max_attempts
            failure = f"{event.reason}: {event.detail}" if event.failure else ""
            run.retry(event.trajectory, max_attempts=attempts, failure=failure)
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
