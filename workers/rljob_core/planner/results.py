"""Which payloads and rewards count, and when a group is ready.

Streams deliver at least once and are read again from their start after a restart, so everything here is idempotent:
a result counts only if its attempt holds the sibling, and only once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.actions import (
    CheckRewards,
    PayloadAbsent,
    PayloadSeen,
    RequestScores,
    RewardsComplete,
    RewardsSeen,
    Summary,
)
from rljob_core.advantage import UNIFORM, is_uniform
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import GroupState
from rljob_core.messages import GroupMember, RewardResult, ScoreGroup
from rljob_core.planner import backpressure, endings
from rljob_core.planner.context import PlannerContext
from rljob_core.ports import LARGEST_SCORE
from rljob_core.records import Generated, GroupReady, Rewarded
from rljob_core.spec import TRUNCATION, RLJobSpec
from rljob_core.staleness import EntryState
from rljob_core.trajectory import State, group_of, is_evaluation

INVALID = "InvalidOutput"
"""Reason of an attempt whose payload cannot be true; rollout workers give the same of such a response of an engine."""
LONGEST_DIGEST = 64
"""Characters of a digest in the ledger at most."""
MOST_TOKENS = 2**40
"""Tokens of a trajectory at most: above the largest number that is a float, a mean over them would raise."""
_UNANSWERED = frozenset({State.RESERVED, State.GENERATING})
"""States in which a sibling takes a payload. A reserved one can have a payload if the ledger lost its dispatch."""


def on_payload(context: PlannerContext, seen: PayloadSeen) -> None:
    """Headers of one stored message: payloads of current attempts count, the others are released."""
    keys = [(s.trajectory, s.attempt) for s in seen.summaries]
    sizes = [backpressure.stored_bytes(context, s) for s in seen.summaries]
    context.messages.payloads.add(seen.sequence, keys, sizes)
    for index, summary in enumerate(seen.summaries):
        if is_evaluation(summary.trajectory):
            _on_answer(context, summary, sequence=seen.sequence, index=index)
        else:
            _on_trajectory(context, summary, sequence=seen.sequence, index=index)


def _on_answer(context: PlannerContext, summary: Summary, *, sequence: int, index: int) -> None:
    key = (summary.trajectory, summary.attempt)
    run = context.evaluation
    if not run.holds(*key):
        context.messages.release(key)
        return
    engine = run.arrived(summary.trajectory, newest=summary.span.max)
    context.liveness.free_slot(engine)
    if fault := payload_fault(summary, committed=context.state.version):
        context.messages.payloads.release(key)
        attempts = context.spec.pipeline.max_attempts
        run.retry(
            summary.trajectory,
            max_attempts=attempts,
            failure="" if _is_ahead(context, engine) else f"{INVALID}: {fault}",
        )
    elif early := context.messages.pop_early(key, summary.digest):
        _on_score(context, early)
    elif context.spec.reward.per_group:
        alone = GroupMember(*key, summary.digest, sequence, index)
        context.act(RequestScores(ScoreGroup((alone,))))


def _on_trajectory(context: PlannerContext, summary: Summary, *, sequence: int, index: int) -> None:
    key = (summary.trajectory, summary.attempt)
    sibling = context.state.sibling(summary.trajectory)
    if sibling is None or sibling.attempt != summary.attempt:
        context.messages.payloads.release(key)
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
    if (group := context.state.groups.get(group_of(sibling.id))) is not None:
        _request_scores(context, group)


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
        if run.holds(*key) and run.engines.get(absent.trajectory) == absent.engine:
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
    waiting = [
        (t, context.state.attempt(t))
        for t in context.state.unscored
        if not context.spec.reward.per_group or _is_answered(context.state.groups[group_of(t)])
    ]
    waiting += [(t, context.evaluation.attempts[t]) for t in context.evaluation.unscored]
    if (number := context.score_checks.heartbeat(waiting)) is not None:
        context.act(CheckRewards(number))


def on_rewards_complete(context: PlannerContext, complete: RewardsComplete) -> None:
    """Every score of what was stored at the check has been read: a payload without a score has lost it."""
    context.messages.rewards.add(complete.sequence, [])
    for trajectory, attempt in context.score_checks.answered(complete.number):
        if is_evaluation(trajectory):
            run = context.evaluation
            if run.holds(trajectory, attempt) and trajectory in run.unscored:
                context.messages.payloads.release((trajectory, attempt))
                run.retry(trajectory)
            continue
        sibling = context.state.sibling(trajectory)
        if sibling is not None and sibling.attempt == attempt and sibling.state is State.GENERATED:
            endings.reset_sibling(context, sibling, "RewardLost", failure=False)


def on_rewards(context: PlannerContext, seen: RewardsSeen) -> None:
    """One message of the reward stream."""
    context.messages.rewards.add(seen.sequence, [(r.trajectory, r.attempt) for r in seen.results])
    superseded = _superseded(context, seen.results) if context.spec.reward.per_group else frozenset()
    for result in seen.results:
        if is_evaluation(result.trajectory):
            _on_score(context, result)
        elif result.failure is None and group_of(result.trajectory) in superseded:
            context.messages.rewards.release((result.trajectory, result.attempt))
        else:
            _on_reward(context, result)


def _on_score(context: PlannerContext, result: RewardResult) -> None:
    run, key = context.evaluation, (result.trajectory, result.attempt)
    if run.holds(*key):
        if result.trajectory not in run.unscored:  # the score came before the payload's header
            context.messages.keep_early(result)
            return
        if failure := failure_of(result, context.spec):
            attempts = context.spec.pipeline.max_attempts
            run.retry(result.trajectory, max_attempts=attempts, failure=str(failure))
        else:
            run.score(result.trajectory, result.reward)
    context.messages.rewards.release(key)
    context.messages.payloads.release(key)


def _on_reward(context: PlannerContext, result: RewardResult) -> None:
    key = (result.trajectory, result.attempt)
    sibling = context.state.sibling(result.trajectory)
    if sibling is None or sibling.attempt != result.attempt:
        context.messages.rewards.release(key)
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


def _superseded(context: PlannerContext, results: Sequence[RewardResult]) -> frozenset[str]:
    """Groups that were scored with an answer that is being generated again: scores of one group come from one call."""
    held = (
        (result, context.state.sibling(result.trajectory)) for result in results if result.failure is None
    )
    return frozenset(group_of(r.trajectory) for r, s in held if s is not None and s.attempt != r.attempt)


def _is_answered(group: GroupState) -> bool:
    """Whether each sibling's answer is stored, and perhaps scored."""
    return all(s.state in {State.GENERATED, State.REWARDED} for s in group.siblings)


def _request_scores(context: PlannerContext, group: GroupState) -> None:
    """Have a group scored once its answers are all stored, if functions score groups and it lacks a score."""
    if not context.spec.reward.per_group or not _is_answered(group):
        return
    if all(s.state is State.REWARDED for s in group.siblings):
        return
    members = [
        GroupMember(s.id, s.attempt, s.payload.digest, s.payload.sequence, s.payload.index)
        for s in group.siblings
        if s.payload is not None
    ]
    context.act(RequestScores(ScoreGroup(tuple(members))))


def complete_rewarded_groups(context: PlannerContext) -> None:
    """After a replay: the ledger may break off between a group's last answer or reward and what follows from it."""
    for buffer in list(context.state.buffers.buffers.values()):
        for name in buffer.groups(EntryState.RESERVED):
            _request_scores(context, context.state.groups[name])
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


def payload_fault(summary: Summary, *, committed: int) -> str:
    """What cannot be true of a payload, as far as its header tells; empty if nothing is known against it.

    Args:
        summary: the payload's header.
        committed: the newest committed version: no token can be of weights that do not exist.
    """
    span = summary.span
    if len(summary.digest) > LONGEST_DIGEST:
        return f"its digest has {len(summary.digest)} characters"
    if summary.tokens > MOST_TOKENS:
        return f"more than {MOST_TOKENS} tokens cannot be"
    if not 1 <= summary.response_tokens <= summary.tokens:
        return f"{summary.response_tokens} of {summary.tokens} tokens are its response"
    if not 0 <= span.min <= span.max:
        return f"its tokens are of versions {span.min} to {span.max}"
    if span.max > committed:
        return f"its tokens are of versions up to {span.max}, where {committed} is the newest committed one"
    return ""


def failure_of(result: RewardResult, spec: RLJobSpec) -> Failure | None:
    """The failure of the attempt that was scored; None if the score counts.

    Reward workers run users' code, and check scores as they enter. The coordinator does not rely on it: a number that
    is none would end it in the arithmetic of a group, and a long text would fill the ledger.

    Args:
        result: as it was read.
        spec: the job's.
    """
    if result.failure is not None:
        return result.failure
    penalty = spec.algorithm.truncation_penalty if spec.algorithm.truncated == "Penalise" else 0.0
    if not abs(result.reward) <= spec.reward.largest * LARGEST_SCORE + penalty:
        return Failure(Reason.REWARD_OUT_OF_RANGE, f"a reward worker sent the score {result.reward:g}")
    if unknown := result.parts.keys() - {*spec.reward.functions, TRUNCATION}:
        return Failure(
            Reason.REWARD_INVALID,
            f"a reward worker sent parts of a function that the job does not have: {min(unknown)[:64]}",
        )
    if len(result.digest) > LONGEST_DIGEST:
        return Failure(
            Reason.REWARD_INVALID, f"a reward worker sent a digest of {len(result.digest)} characters"
        )
    for name, score in result.parts.items():
        if not abs(score) <= LARGEST_SCORE:
            return Failure(Reason.REWARD_OUT_OF_RANGE, f"a reward worker sent the score {score:g} of {name}")
    return None
