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
from rljob_core.planner.context import Desk
from rljob_core.records import Generated, GroupReady, Rewarded
from rljob_core.staleness import EntryState
from rljob_core.trajectory import State, group_of, is_evaluation

SCORE_BEATS = 10
"""Own heartbeats for which a payload may wait for its score before it is asked whether that is lost."""
_UNANSWERED = frozenset({State.RESERVED, State.GENERATING})
"""A sibling whose payload is taken. That one which is only reserved was sent is in a lost part of the ledger."""


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
    if sibling.state not in _UNANSWERED:
        return
    desk.free_slot(sibling.engine)
    if not desk.state.buffers.buffer_of(group_of(sibling.id)).admits(summary.span.min):
        # Of a part of the ledger that is lost, where it was sent with another minVersion.
        desk.reset(sibling, "StalePayload", failure=False)
        return
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
    if early := desk.early_rewards.pop(key, {}).get(summary.digest):
        _take_reward(desk, early)


def take_absence(desk: Desk, absent: PayloadAbsent) -> None:
    """An engine has nothing more of what it was sent: if its payload was not seen by now, it is lost."""
    key = (absent.trajectory, absent.attempt)
    desk.payloads.add(absent.sequence, [])
    if is_evaluation(absent.trajectory):
        run = desk.evaluation
        if run is not None and run.holds(*key) and run.engines.get(absent.trajectory) == absent.engine:
            desk.free_slot(absent.engine)
            run.retry(absent.trajectory, max_attempts=0, failure=False)
        return
    sibling = desk.state.sibling(absent.trajectory)
    if sibling is None or sibling.state is not State.GENERATING:
        return
    if (sibling.attempt, sibling.engine) == (absent.attempt, absent.engine):
        desk.free_slot(sibling.engine)
        desk.reset(sibling, "NotHeld", failure=False)


def take_heartbeat(desk: Desk) -> None:
    """The coordinator's own heartbeat came back: what has had no score for long may have lost it."""
    waiting = [(t, desk.state.attempt(t)) for t in desk.state.unscored]
    if (run := desk.evaluation) is not None:
        waiting += [(t, run.attempts[t]) for t in run.unscored]
    desk.unscored = {key: desk.unscored.get(key, 0) + 1 for key in waiting}
    if max(desk.unscored.values(), default=0) > SCORE_BEATS:
        desk.unscored = dict.fromkeys(desk.unscored, 0)
        desk.asked_scores = tuple(waiting)
        desk.score_checks += 1
        desk.act(CheckRewards(desk.score_checks))


def take_completeness(desk: Desk, complete: RewardsComplete) -> None:
    """All scores were seen of what was stored when they were asked about: what has none has lost it."""
    desk.reward_messages.add(complete.sequence, [])
    if complete.number != desk.score_checks:
        return
    asked, desk.asked_scores = desk.asked_scores, ()
    for trajectory, attempt in asked:
        if is_evaluation(trajectory):
            run = desk.evaluation
            if run is not None and run.holds(trajectory, attempt) and trajectory in run.unscored:
                desk.payloads.release([(trajectory, attempt)])
                run.retry(trajectory, max_attempts=0, failure=False)
            continue
        sibling = desk.state.sibling(trajectory)
        if sibling is not None and sibling.attempt == attempt and sibling.state is State.GENERATED:
            desk.reset(sibling, "RewardLost", failure=False)


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
    if sibling.state in _UNANSWERED:  # the reward overtook the payload's header
        desk.early_rewards.setdefault(key, {})[result.payload_digest] = result
        return
    payload = sibling.payload
    if sibling.state is not State.GENERATED or payload is None or payload.digest != result.payload_digest:
        return
    if result.error:
        reason, _, detail = result.error.partition(": ")
        desk.fail(sibling, reason, detail=detail)
        return
    desk.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))
    _complete(desk, desk.state.groups[group_of(result.trajectory)])


def complete_left(desk: Desk) -> None:
    """After a replay: the ledger may break off between a group's last reward and what follows from it."""
    for buffer in list(desk.state.buffers.buffers.values()):
        for name in buffer.groups(EntryState.RESERVED):
            _complete(desk, desk.state.groups[name])


def _complete(desk: Desk, group: GroupState) -> None:
    """Once all siblings are rewarded the group is ready, or replaced because it teaches nothing."""
    if any(s.state is not State.REWARDED for s in group.siblings):
        return
    uniform = is_uniform([s.reward or 0.0 for s in group.siblings])
    may_replace = desk.state.replaced["UniformGroup"] < desk.spec.pipeline.max_resamples
    if uniform and desk.spec.algorithm.drop_uniform_groups and may_replace:
        desk.abort(group.id, "UniformGroup")
        return
    buffer = desk.state.buffers.buffer_of(group.id)
    desk.emit(GroupReady(group.id, buffer.step, group.base(buffer.min_version)))
