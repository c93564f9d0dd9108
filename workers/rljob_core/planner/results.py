"""Which payloads and rewards count, and when a group is ready.

Streams deliver at least once and are read again from their start after a restart, so everything here is idempotent:
a result counts only if its attempt holds the sibling, and only once.
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
from rljob_core.advantage import UNIFORM, is_uniform
from rljob_core.job_state import GroupState
from rljob_core.messages import RewardResult
from rljob_core.planner import endings
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.payload_checks import INVALID, payload_fault
from rljob_core.planner.reward_checks import failure_of
from rljob_core.records import Generated, GroupReady, Rewarded
from rljob_core.staleness import EntryState
from rljob_core.streams_budget import payload_bytes
from rljob_core.trajectory import State, group_of, is_evaluation

_UNANSWERED = frozenset({State.RESERVED, State.GENERATING})
"""States in which a sibling takes a payload. A reserved one can have a payload if the ledger lost its dispatch."""


def on_payload(context: PlannerContext, seen: PayloadSeen) -> None:
    """Headers of one stored message: payloads of current attempts count, the others are released."""
    keys = [(s.trajectory, s.attempt) for s in seen.summaries]
    turns = context.spec.rollout.max_turns
    sizes = [
        payload_bytes(
            prompt_tokens=s.tokens - s.response_tokens, response_tokens=s.response_tokens, turns=turns
        )
        for s in seen.summaries
    ]
    context.messages.payloads.add(seen.sequence, keys, sizes)
    for index, summary in enumerate(seen.summaries):
        if is_evaluation(summary.trajectory):
            _on_answer(context, summary)
        else:
            _on_trajectory(context, summary, sequence=seen.sequence, index=index)


def _on_answer(context: PlannerContext, summary: Summary) -> None:
    key = (summary.trajectory, summary.attempt)
    run = context.evaluation
    if run is None or not run.holds(*key):
        context.messages.release(key)
        return
    engine = run.arrived(summary.trajectory, newest=summary.span.max)
    context.liveness.free_slot(engine)
    if fault := payload_fault(summary, committed=context.state.version):
        context.messages.payloads.release([key])
        attempts = context.spec.pipeline.max_attempts
        run.retry(
            summary.trajectory,
            max_attempts=attempts,
            failure="" if _is_ahead(context, engine) else f"{INVALID}: {fault}",
        )
    elif early := context.messages.pop_early(key, summary.digest):
        _on_score(context, early)


def _on_trajectory(context: PlannerContext, summary: Summary, *, sequence: int, index: int) -> None:
    key = (summary.trajectory, summary.attempt)
    sibling = context.state.sibling(summary.trajectory)
    if sibling is None or sibling.attempt != summary.attempt:
        context.messages.payloads.release([key])
        return
    if sibling.state not in _UNANSWERED:
        return
    context.liveness.free_slot(sibling.engine)
    if fault := payload_fault(summary, committed=context.state.version):
        if _is_ahead(context, sibling.engine):
            endings.reset_sibling(context, sibling, INVALID, failure=False, detail=fault)
        else:
            endings.fail_sibling(context, sibling, INVALID, detail=fault)
        return
    if not context.state.buffers.buffer_of(group_of(sibling.id)).admits(summary.span.min):
        # The ledger has lost its dispatch, which asked for another minVersion.
        endings.reset_sibling(context, sibling, "StalePayload", failure=False)
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
    if early := context.messages.pop_early(key, summary.digest):
        _on_reward(context, early)


def _is_ahead(context: PlannerContext, engine: str) -> bool:
    """Whether an engine may have weights that a loss has revoked, which is no failure of the attempt.

    It says so itself by its heartbeats, until it has gone back; before the first one, nothing is known.
    """
    view = context.liveness.engines.get(engine)
    return view is None or view.version > context.state.version


def on_payload_absent(context: PlannerContext, absent: PayloadAbsent) -> None:
    """An engine no longer has a trajectory that it was sent again: if its payload was not read by now, it is lost."""
    key = (absent.trajectory, absent.attempt)
    context.messages.payloads.add(absent.sequence, [])
    if is_evaluation(absent.trajectory):
        run = context.evaluation
        if run is not None and run.holds(*key) and run.engines.get(absent.trajectory) == absent.engine:
            context.liveness.free_slot(absent.engine)
            run.retry(absent.trajectory)
        return
    sibling = context.state.sibling(absent.trajectory)
    if sibling is None or sibling.state is not State.GENERATING:
        return
    if (sibling.attempt, sibling.engine) == (absent.attempt, absent.engine):
        context.liveness.free_slot(sibling.engine)
        endings.reset_sibling(context, sibling, "NotHeld", failure=False)


def on_heartbeat(context: PlannerContext) -> None:
    """The coordinator's own heartbeat came back: payloads that have waited long may have lost their scores."""
    waiting = [(t, context.state.attempt(t)) for t in context.state.unscored]
    if (run := context.evaluation) is not None:
        waiting += [(t, run.attempts[t]) for t in run.unscored]
    if (number := context.score_checks.heartbeat(waiting)) is not None:
        context.act(CheckRewards(number))


def on_rewards_complete(context: PlannerContext, complete: RewardsComplete) -> None:
    """Every score of what was stored at the check has been read: a payload without a score has lost it."""
    context.messages.rewards.add(complete.sequence, [])
    for trajectory, attempt in context.score_checks.answered(complete.number):
        if is_evaluation(trajectory):
            run = context.evaluation
            if run is not None and run.holds(trajectory, attempt) and trajectory in run.unscored:
                context.messages.payloads.release([(trajectory, attempt)])
                run.retry(trajectory)
            continue
        sibling = context.state.sibling(trajectory)
        if sibling is not None and sibling.attempt == attempt and sibling.state is State.GENERATED:
            endings.reset_sibling(context, sibling, "RewardLost", failure=False)


def on_rewards(context: PlannerContext, seen: RewardsSeen) -> None:
    """One message of the reward stream."""
    context.messages.rewards.add(seen.sequence, [(r.trajectory, r.attempt) for r in seen.results])
    for result in seen.results:
        if is_evaluation(result.trajectory):
            _on_score(context, result)
        else:
            _on_reward(context, result)


def _on_score(context: PlannerContext, result: RewardResult) -> None:
    run, key = context.evaluation, (result.trajectory, result.attempt)
    if run is not None and run.holds(*key):
        if result.trajectory not in run.unscored:  # the score came before the payload's header
            context.messages.keep_early(result)
            return
        if failure := failure_of(result, context.spec):
            attempts = context.spec.pipeline.max_attempts
            run.retry(result.trajectory, max_attempts=attempts, failure=str(failure))
        else:
            run.score(result.trajectory, result.reward)
    context.messages.rewards.release([key])
    context.messages.payloads.release([key])


def _on_reward(context: PlannerContext, result: RewardResult) -> None:
    key = (result.trajectory, result.attempt)
    sibling = context.state.sibling(result.trajectory)
    if sibling is None or sibling.attempt != result.attempt:
        context.messages.rewards.release([key])
        return
    if sibling.state in _UNANSWERED:  # the score came before the payload's header
        context.messages.keep_early(result)
        return
    payload = sibling.payload
    if sibling.state is not State.GENERATED or payload is None or payload.digest != result.payload_digest:
        return
    if failure := failure_of(result, context.spec):
        endings.fail_sibling(context, sibling, failure.reason, detail=failure.detail)
        return
    context.metrics.scored(result)
    context.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))
    _complete(context, context.state.groups[group_of(result.trajectory)])


def complete_rewarded_groups(context: PlannerContext) -> None:
    """After a replay: the ledger may break off between a group's last reward and the record that follows from it."""
    for buffer in list(context.state.buffers.buffers.values()):
        for name in buffer.groups(EntryState.RESERVED):
            _complete(context, context.state.groups[name])


def _complete(context: PlannerContext, group: GroupState) -> None:
    """Once all siblings are rewarded, the group is ready; or it is replaced, if equal rewards teach nothing."""
    if any(s.state is not State.REWARDED for s in group.siblings):
        return
    uniform = is_uniform([s.reward or 0.0 for s in group.siblings])
    may_replace = context.state.replaced[UNIFORM] < context.spec.pipeline.max_resamples
    if uniform and context.spec.algorithm.drop_uniform_groups and may_replace:
        endings.abort_group(context, group.id, UNIFORM)
        return
    buffer = context.state.buffers.buffer_of(group.id)
    context.emit(GroupReady(group.id, buffer.step, group.base(buffer.min_version)))
