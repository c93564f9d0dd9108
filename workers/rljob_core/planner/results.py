"""Which payloads and rewards count, and when a group is ready.

Streams deliver at least once and are read again from their start after a restart, so everything here is idempotent:
only the attempt that holds a sibling is taken, and only once.
"""

from __future__ import annotations

from rljob_core.actions import (
    CheckRewards,
    PayloadAbsent,
    PayloadSeen,
    RewardsComplete,
    RewardsSeen,
    Summary,
)
from rljob_core.advantage import is_uniform
from rljob_core.job_state import GroupState
from rljob_core.messages import RewardResult
from rljob_core.planner.context import PlannerContext
from rljob_core.records import Generated, GroupReady, Rewarded
from rljob_core.staleness import EntryState
from rljob_core.trajectory import State, group_of, is_evaluation

SCORE_BEATS = 10
"""Own heartbeats for which a payload may wait for its score before it is asked whether that is lost."""
_UNANSWERED = frozenset({State.RESERVED, State.GENERATING})
"""A sibling whose payload is taken. That one which is only reserved was sent is in a lost part of the ledger."""


def on_payload(context: PlannerContext, seen: PayloadSeen) -> None:
    """Headers of one stored message: take the results that hold their siblings, let go of the others."""
    context.payloads.add(seen.sequence, [(s.trajectory, s.attempt) for s in seen.summaries])
    for index, summary in enumerate(seen.summaries):
        if is_evaluation(summary.trajectory):
            _on_answer(context, summary)
        else:
            _on_trajectory(context, summary, sequence=seen.sequence, index=index)


def _on_answer(context: PlannerContext, summary: Summary) -> None:
    key = (summary.trajectory, summary.attempt)
    if context.evaluation is not None and context.evaluation.holds(*key):
        context.free_slot(context.evaluation.arrived(summary.trajectory))
    else:
        context.payloads.release([key])


def _on_trajectory(context: PlannerContext, summary: Summary, *, sequence: int, index: int) -> None:
    key = (summary.trajectory, summary.attempt)
    sibling = context.state.sibling(summary.trajectory)
    if sibling is None or sibling.attempt != summary.attempt:
        context.payloads.release([key])
        return
    if sibling.state not in _UNANSWERED:
        return
    context.free_slot(sibling.engine)
    if not context.state.buffers.buffer_of(group_of(sibling.id)).admits(summary.span.min):
        # Of a part of the ledger that is lost, where it was sent with another minVersion.
        context.reset(sibling, "StalePayload", failure=False)
        return
    context.emit(
        Generated(
            summary.trajectory,
            summary.attempt,
            summary.span,
            summary.tokens,
            summary.response_tokens,
            summary.digest,
            sequence,
            index,
        )
    )
    if early := context.early_rewards.pop(key, {}).get(summary.digest):
        _on_reward(context, early)


def on_payload_absent(context: PlannerContext, absent: PayloadAbsent) -> None:
    """An engine has nothing more of what it was sent: if its payload was not seen by now, it is lost."""
    key = (absent.trajectory, absent.attempt)
    context.payloads.add(absent.sequence, [])
    if is_evaluation(absent.trajectory):
        run = context.evaluation
        if run is not None and run.holds(*key) and run.engines.get(absent.trajectory) == absent.engine:
            context.free_slot(absent.engine)
            run.retry(absent.trajectory, max_attempts=0, failure=False)
        return
    sibling = context.state.sibling(absent.trajectory)
    if sibling is None or sibling.state is not State.GENERATING:
        return
    if (sibling.attempt, sibling.engine) == (absent.attempt, absent.engine):
        context.free_slot(sibling.engine)
        context.reset(sibling, "NotHeld", failure=False)


def on_heartbeat(context: PlannerContext) -> None:
    """The coordinator's own heartbeat came back: what has had no score for long may have lost it."""
    waiting = [(t, context.state.attempt(t)) for t in context.state.unscored]
    if (run := context.evaluation) is not None:
        waiting += [(t, run.attempts[t]) for t in run.unscored]
    context.unscored = {key: context.unscored.get(key, 0) + 1 for key in waiting}
    if max(context.unscored.values(), default=0) > SCORE_BEATS:
        context.unscored = dict.fromkeys(context.unscored, 0)
        context.asked_scores = tuple(waiting)
        context.score_checks += 1
        context.act(CheckRewards(context.score_checks))


def on_rewards_complete(context: PlannerContext, complete: RewardsComplete) -> None:
    """All scores were seen of what was stored when they were asked about: what has none has lost it."""
    context.reward_messages.add(complete.sequence, [])
    if complete.number != context.score_checks:
        return
    asked, context.asked_scores = context.asked_scores, ()
    for trajectory, attempt in asked:
        if is_evaluation(trajectory):
            run = context.evaluation
            if run is not None and run.holds(trajectory, attempt) and trajectory in run.unscored:
                context.payloads.release([(trajectory, attempt)])
                run.retry(trajectory, max_attempts=0, failure=False)
            continue
        sibling = context.state.sibling(trajectory)
        if sibling is not None and sibling.attempt == attempt and sibling.state is State.GENERATED:
            context.reset(sibling, "RewardLost", failure=False)


def on_rewards(context: PlannerContext, seen: RewardsSeen) -> None:
    """One message of the reward stream."""
    context.reward_messages.add(seen.sequence, [(r.trajectory, r.attempt) for r in seen.results])
    for result in seen.results:
        if is_evaluation(result.trajectory):
            _on_score(context, result)
        else:
            _on_reward(context, result)


def _on_score(context: PlannerContext, result: RewardResult) -> None:
    run, key = context.evaluation, (result.trajectory, result.attempt)
    if run is not None and run.holds(*key):
        # Still with its engine, if it overtook the payload's header.
        context.free_slot(run.arrived(result.trajectory))
        if result.error:
            run.retry(result.trajectory, max_attempts=context.spec.pipeline.max_attempts, failure=True)
        else:
            run.score(result.trajectory, result.reward)
    context.reward_messages.release([key])
    context.payloads.release([key])


def _on_reward(context: PlannerContext, result: RewardResult) -> None:
    key = (result.trajectory, result.attempt)
    sibling = context.state.sibling(result.trajectory)
    if sibling is None or sibling.attempt != result.attempt:
        context.reward_messages.release([key])
        return
    if sibling.state in _UNANSWERED:  # the reward overtook the payload's header
        context.early_rewards.setdefault(key, {})[result.payload_digest] = result
        return
    payload = sibling.payload
    if sibling.state is not State.GENERATED or payload is None or payload.digest != result.payload_digest:
        return
    if result.error:
        reason, _, detail = result.error.partition(": ")
        context.fail(sibling, reason, detail=detail)
        return
    context.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))
    _complete(context, context.state.groups[group_of(result.trajectory)])


def complete_left(context: PlannerContext) -> None:
    """After a replay: the ledger may break off between a group's last reward and what follows from it."""
    for buffer in list(context.state.buffers.buffers.values()):
        for name in buffer.groups(EntryState.RESERVED):
            _complete(context, context.state.groups[name])


def _complete(context: PlannerContext, group: GroupState) -> None:
    """Once all siblings are rewarded the group is ready, or replaced because it teaches nothing."""
    if any(s.state is not State.REWARDED for s in group.siblings):
        return
    uniform = is_uniform([s.reward or 0.0 for s in group.siblings])
    may_replace = context.state.replaced["UniformGroup"] < context.spec.pipeline.max_resamples
    if uniform and context.spec.algorithm.drop_uniform_groups and may_replace:
        context.abort(group.id, "UniformGroup")
        return
    buffer = context.state.buffers.buffer_of(group.id)
    context.emit(GroupReady(group.id, buffer.step, group.base(buffer.min_version)))
