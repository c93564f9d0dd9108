"""Which payloads and rewards count, and when a group is ready.

Streams deliver at least once and are read again from their start after a restart, so everything here is idempotent:
only the attempt that holds a sibling is taken, and only once.
"""

from __future__ import annotations

from rljob_core.actions import PayloadSeen, RewardsSeen, Summary
from rljob_core.advantage import is_uniform
from rljob_core.job_state import GroupState
from rljob_core.messages import RewardResult
from rljob_core.planner.desk import Desk
from rljob_core.records import Generated, GroupReady, Rewarded
from rljob_core.trajectory import State, group_of, is_evaluation


def take_payload(desk: Desk, seen: PayloadSeen) -> None:
    """Headers of one stored message: take the results that hold their siblings, let go of the others."""
    desk.payloads.add(seen.sequence, [(s.trajectory, s.attempt) for s in seen.summaries])
    for index, summary in enumerate(seen.summaries):
        if is_evaluation(summary.trajectory):
            _take_answer(desk, summary)
        else:
            _take_trajectory(desk, summary, sequence=seen.sequence, index=index)


def _take_answer(desk: Desk, summary: Summary) -> None:
    key = (summary.trajectory, summary.attempt)
    if desk.evaluation is not None and desk.evaluation.holds(*key):
        desk.free_slot(desk.evaluation.arrived(summary.trajectory))
    else:
        desk.payloads.release([key])


def _take_trajectory(desk: Desk, summary: Summary, *, sequence: int, index: int) -> None:
    key = (summary.trajectory, summary.attempt)
    sibling = desk.state.sibling(summary.trajectory)
    if sibling is None or sibling.attempt != summary.attempt:
        desk.payloads.release([key])
        return
    if sibling.state is not State.GENERATING:
        return
    desk.free_slot(sibling.engine)
    desk.emit(
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
    if early := desk.early_rewards.pop(key, None):
        _take_reward(desk, early)


def take_rewards(desk: Desk, seen: RewardsSeen) -> None:
    """One message of the reward stream."""
    desk.reward_messages.add(seen.sequence, [(r.trajectory, r.attempt) for r in seen.results])
    for result in seen.results:
        if is_evaluation(result.trajectory):
            _take_score(desk, result)
        else:
            _take_reward(desk, result)


def _take_score(desk: Desk, result: RewardResult) -> None:
    run, key = desk.evaluation, (result.trajectory, result.attempt)
    if run is not None and run.holds(*key):
        # Still with its engine, if it overtook the payload's header.
        desk.free_slot(run.arrived(result.trajectory))
        if result.error:
            run.retry(result.trajectory, max_attempts=desk.spec.pipeline.max_attempts, failure=True)
        else:
            run.score(result.trajectory, result.reward)
    desk.reward_messages.release([key])
    desk.payloads.release([key])


def _take_reward(desk: Desk, result: RewardResult) -> None:
    key = (result.trajectory, result.attempt)
    sibling = desk.state.sibling(result.trajectory)
    if sibling is None or sibling.attempt != result.attempt:
        desk.reward_messages.release([key])
        return
    if sibling.state is State.GENERATING:  # the reward overtook the payload's header
        desk.early_rewards[key] = result
        return
    payload = sibling.payload
    if sibling.state is not State.GENERATED or payload is None or payload.digest != result.payload_digest:
        return
    if result.error:
        reason, _, detail = result.error.partition(": ")
        desk.fail(sibling, reason, detail=detail)
        return
    desk.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))
    group = desk.state.groups[group_of(result.trajectory)]
    if all(s.state is State.REWARDED for s in group.siblings):
        _complete(desk, group)


def _complete(desk: Desk, group: GroupState) -> None:
    """All siblings are rewarded: the group is ready, or replaced because it teaches nothing."""
    uniform = is_uniform([s.reward or 0.0 for s in group.siblings])
    may_replace = desk.state.replaced["UniformGroup"] < desk.spec.pipeline.max_resamples
    if uniform and desk.spec.algorithm.drop_uniform_groups and may_replace:
        desk.abort(group.id, "UniformGroup")
        return
    buffer = desk.state.buffers.buffer_of(group.id)
    desk.emit(GroupReady(group.id, buffer.step, group.base(buffer.min_version)))
