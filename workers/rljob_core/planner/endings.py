"""How attempts, groups and the job end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rljob_core.actions import SendToEngine, SendToTrainer
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import Sibling
from rljob_core.messages import Cancel, Finish, Retention
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.metrics_line import publish
from rljob_core.planner.stored_messages import AttemptKey
from rljob_core.records import GroupAborted, JobFinished, SiblingReset
from rljob_core.trajectory import State, group_of, prompt_of_group

DETAIL_CHARACTERS = 500
"""Length to which the detail of a failure is cut before it goes into the ledger."""
LOST_BATCHES = 100
"""Batches of groups whose payloads one step may find lost before the job fails.

No machine's death costs as much; a store that loses everything does.
"""


def reset_sibling(
    context: PlannerContext,
    sibling: Sibling,
    reason: str,
    *,
    failure: bool,
    detail: str = "",
    carries: bool = False,
    died: bool = False,
) -> None:
    """Have the sibling generated again as its next attempt.

    Args:
        failure: whether this counts against `maxAttempts`.
        carries: whether the next attempt may inherit the progress of earlier ones.
        died: whether its engine has died.
    """
    context.release(sibling)
    attempt, detail = sibling.attempt + 1, detail[:DETAIL_CHARACTERS]
    loss = context.sites.losses.get(sibling.engine)
    behind = sibling.site, 0 if loss is None else loss.mark
    context.emit(SiblingReset(sibling.id, attempt, reason, failure, detail, carries, died))
    if carries:
        context.lookups.interrupted[sibling.id] = behind


def fail_sibling(
    context: PlannerContext,
    sibling: Sibling,
    reason: str,
    *,
    detail: str,
    died: bool = False,
    earlier: int | None = None,
) -> bool:
    """Generate the sibling again after a failure; after `maxAttempts` failures, abort its group and return True.

    Args:
        died: whether its engine has died.
        earlier: earlier failures to count, if these are not the ones that the ledger counts as such.
    """
    earlier = sibling.failures if earlier is None else earlier
    if earlier + 1 < context.spec.pipeline.max_attempts:
        reset_sibling(context, sibling, reason, failure=True, detail=detail, died=died)
        return False
    exhaust_prompt(context, sibling, reason, detail=detail)
    return True


def exhaust_prompt(context: PlannerContext, sibling: Sibling, reason: str, *, detail: str) -> None:
    """End a sibling's group because the sibling has failed too often."""
    group = group_of(sibling.id)
    said = f"prompt {prompt_of_group(group)} ({sibling.id}): {reason}: {detail[:DETAIL_CHARACTERS]}"
    abort_group(context, group, "PromptExhausted", {sibling.id: reason}, detail=said)


def abort_group(
    context: PlannerContext,
    group: str,
    reason: str,
    causes: dict[str, str] | None = None,
    *,
    detail: str = "",
) -> None:
    """End a group without training on it, and cancel its siblings on their engines.

    Args:
        causes: reasons of single siblings, by trajectory id, where they differ from the group's.
        detail: what happened, for people.
    """
    running: dict[tuple[str, str], list[Sibling]] = {}
    for sibling in context.state.groups[group].siblings:
        if sibling.state is State.GENERATING:
            context.liveness.free_slot(sibling.engine)
            engine = sibling.engine, context.site_of(sibling.engine)
            running.setdefault(engine, []).append(sibling)
        context.release(sibling)
    context.emit(GroupAborted(group, reason, causes or {}, detail))
    for (name, site), siblings in running.items():
        cancel(context, name, [(s.id, s.attempt) for s in siblings], site=site)


def give_up_answers(context: PlannerContext, prompt: int, failure: str, *, dead: str = "") -> None:
    """Ask a held-out prompt no more, and cancel its answers on their engines.

    Args:
        failure: what its answers fail of.
        dead: the answer whose engine has died; it is not cancelled there.
    """
    for answer, attempt, engine in context.evaluation.give_up(prompt, failure):
        context.messages.payloads.release((answer, attempt))
        if engine and answer != dead:
            context.liveness.free_slot(engine)
            cancel(context, engine, [(answer, attempt)], site=context.site_of(engine))


def abort_all_groups(context: PlannerContext) -> None:
    """Abort every open group: the job is over."""
    for group in list(context.state.groups):
        abort_group(context, group, "JobFinished")


def cancel(context: PlannerContext, engine: str, keys: Sequence[AttemptKey], *, site: str) -> None:
    """Have an engine stop generating these attempts: now, or once its site is reached."""
    if not keys:
        return
    if not context.sites.reaches(site):
        context.sites.cancel_later(engine, site, list(keys))
        return
    trajectories, attempts = zip(*keys, strict=True)
    context.act(SendToEngine(engine, (Cancel(trajectories, attempts),), site))


def finish_job(context: PlannerContext, failure: Failure | None = None) -> None:
    """End the job for good, unless it has ended already: abort its open groups and tell the trainer."""
    if context.state.finished is not None:
        return
    context.emit(JobFinished(failure))
    abort_all_groups(context)
    if context.state.trainer is not None:
        send_finish_if_over(context, context.state.trainer.attempt)
    publish(context)


def send_finish_if_over(context: PlannerContext, attempt: int) -> bool:
    """Send `Finish` to a trainer attempt if the job is over; return whether it is."""
    end = context.state.finished
    if end is not None:
        finish = Finish(context.epoch, end.failure, retention(context))
        context.act(SendToTrainer(attempt, finish))
    return end is not None


def retention(context: PlannerContext) -> Retention | None:
    """Which checkpoints the trainer is to keep besides the newest ones; None if it is these alone."""
    checkpoint, evaluation = context.spec.trainer.checkpoint, context.spec.evaluation
    if not checkpoint.keep_best or evaluation is None:
        return None
    evaluated = context.state.evaluated
    saved = [
        (record.sampled, version)
        for version, record in evaluated.items()
        if version and (version % checkpoint.every_steps == 0 or version == context.last_version)
        if record.sampled is not None  # an evaluation may have no score
    ]
    _, best = max(saved, default=(0.0, 0))
    return Retention(best, max(evaluated, default=0), evaluation.every_steps)


def finish_if_due(context: PlannerContext) -> None:
    """Finish the job if its last version is committed, evaluated and saved, or if one step replaced too much."""
    state, spec, last = context.state, context.spec, context.last_version
    batch = spec.data.prompts_per_step
    given_up, lost = state.replaced["PromptExhausted"], state.replaced["PayloadLost"]
    if given_up > batch:
        ((reason, _),) = Counter(failure.reason for failure in state.given_up).most_common(1)
        causes = "; ".join(failure.detail for failure in state.given_up)
        detail = f"{given_up} prompts of step {state.version} were given up: {causes}"
        finish_job(context, Failure(reason, detail))
        return
    if lost > LOST_BATCHES * batch:
        detail = f"the payloads of {lost} groups were missing when step {state.version} was to train on them"
        finish_job(context, Failure(Reason.PAYLOADS_LOST, detail))
        return
    evaluated = spec.evaluation is None or last in state.evaluated
    saved = state.checkpoint is not None and state.checkpoint.version >= last
    if state.version >= last and evaluated and saved:
        finish_job(context)
