"""Micro-batches, commits, the trainer's fence `(attempt, epoch)`, and versions that the user revokes.

The coordinator assigns nothing before a gang has answered to its epoch; groups that were in training and not committed
are ready again by then. A step is committed by its record alone. The planner records it only if the step is the next
one, comes from the gang in charge, starts from the committed parent, and consists of exactly what was assigned. See
`docs/design/staleness.md`, *Once, whole, and in order*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_core.actions import Announce, PublishMetrics, SendToTrainer
from rljob_core.advantage import group_advantages
from rljob_core.job_state import GroupState
from rljob_core.messages import (
    CheckpointWritten,
    Fence,
    Hello,
    MicroBatch,
    OptimizerReset,
    PayloadMissing,
    Resume,
    StepProposed,
    StepStats,
    TrainerReady,
    TrainingItem,
)
from rljob_core.planner import endings, recovery
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.metrics_line import metrics_line, publish
from rljob_core.records import (
    CheckpointSaved,
    MicroBatchAssigned,
    StepCommitted,
    TrainerAttempt,
    VersionsRevoked,
)
from rljob_core.spec import Mode
from rljob_core.staleness import EntryState
from rljob_core.trajectory import group_of

MICRO_BATCH_ITEMS = 2048
"""Trajectories of one micro-batch at most, unless a single group has more: their list is one message."""


def on_trainer_ready(context: PlannerContext, event: TrainerReady) -> None:
    """A gang asks for work, or answers to this coordinator's `Hello`."""
    trainer = context.state.trainer
    if trainer is not None and event.attempt < trainer.attempt:
        context.act(SendToTrainer(event.attempt, Fence(trainer.attempt, context.epoch)))
        return
    context.check_epoch(event.epoch)
    if event.epoch < context.epoch:
        context.act(SendToTrainer(event.attempt, Hello(context.epoch)))
        return
    if event.proposal is not None:
        _commit(context, event.proposal)
    if trainer is None or event.attempt > trainer.attempt or not context.trainer_link.accepted:
        _resume(context, event.attempt)
    else:
        _resend(context, event)


def _resend(context: PlannerContext, event: TrainerReady) -> None:
    """Send again what the waiting gang in charge lacks, as messages may be lost; it ignores what it has."""
    state, resumed = context.state, context.trainer_link.resumed
    if endings.send_finish_if_over(context, event.attempt):
        return
    if resumed is None:
        return
    behind = event.resume < resumed.number
    if behind:
        context.act(SendToTrainer(event.attempt, resumed))
    elif event.proposal is not None and event.proposal.version > state.version:
        _resume(context, event.attempt)  # not the step that was assigned: it starts over
        return
    elif _lacks_last_checkpoint(context):
        _resume(context, event.attempt)
        return
    taken = 0 if behind or event.version != state.version else event.fed
    context.trainer_link.waits_after = state.version, taken
    for assigned in state.micro_batches[taken:]:
        context.act(SendToTrainer(event.attempt, _message(context, assigned)))


def _resume(context: PlannerContext, attempt: int) -> None:
    """Put a gang in charge and have it start from the newest commit."""
    commit, checkpoint = context.state.commit, context.state.checkpoint
    trainer, link = context.state.trainer, context.trainer_link
    in_charge = trainer.attempt if trainer is not None else None
    number = link.next_resume_number(attempt, in_charge=in_charge)
    context.emit(TrainerAttempt(attempt, context.epoch, commit.version))
    link.accepted = True
    if endings.send_finish_if_over(context, attempt):
        return
    last = commit.version >= context.last_version
    if last:
        link.checkpoint_asked = attempt, commit.version
    link.resumed = Resume(
        attempt=attempt,
        epoch=context.epoch,
        number=number,
        version=commit.version,
        key=commit.key,
        manifest=commit.manifest,
        checkpoint=checkpoint.key if checkpoint else None,
        checkpoint_version=checkpoint.version if checkpoint else None,
        last=last,
        retention=endings.retention(context),
    )
    context.act(SendToTrainer(attempt, link.resumed))


def on_step_proposed(context: PlannerContext, event: StepProposed) -> None:
    """A step's weights and manifest are durable: commit the step, if it is the one that was assigned."""
    if _commit(context, event.proposal, event.stats):
        return
    trainer, proposal = context.state.trainer, event.proposal
    in_charge = trainer is not None and (proposal.attempt, proposal.epoch) == (trainer.attempt, trainer.epoch)
    if in_charge and context.trainer_link.accepted and proposal.version > context.state.version:
        # The gang has finished another step than was assigned. Unless it starts over, each side waits for the other.
        _resume(context, proposal.attempt)


def _commit(context: PlannerContext, proposal: StepCommitted, stats: StepStats | None = None) -> bool:
    """Commit a step if it is exactly what the gang in charge was assigned, and publish its metrics; whether it was.

    A gang that has not heard of this coordinator follows an earlier one, and the server may have lost what that one
    wrote last: newer attempts of the same trajectories, perhaps, and the part of the ledger that the manifest names.
    Such a step is restored, like those that are found by their manifests when a coordinator takes charge.
    """
    state, trainer = context.state, context.state.trainer
    if (
        trainer is None
        or proposal.version != state.version + 1
        or (proposal.attempt, proposal.epoch) != (trainer.attempt, trainer.epoch)
        or proposal.parent != state.commit.manifest
        or not state.micro_batches
        or not state.micro_batches[-1].last
        or proposal.micro_batches != state.assigned()
        or proposal.max_staleness != state.buffers.buffers[state.version].max_staleness
    ):
        return False
    groups = [state.groups[group] for group in state.in_training()]
    siblings = [sibling for group in groups for sibling in group.siblings]
    for group in groups:
        context.lengths.consumed(group)
    context.metrics.consumed(groups, step=state.version, open_groups=state.groups, untrained=state.untrained)
    context.emit(proposal if proposal.epoch == context.epoch else recovery.restored(state, proposal))
    context.admission.committed(context.now)
    context.transfers.committed(proposal.version, context.now)
    for sibling in siblings:
        context.release(sibling)
    announce(context)
    if stats is not None:
        context.metrics.step(stats)
    context.act(PublishMetrics(context.metrics.stepped(metrics_line(context))))
    return True


def announce(context: PlannerContext) -> None:
    """Tell engines of the newest committed version."""
    commit = context.state.commit
    final = commit.version >= context.last_version
    context.act(Announce(context.epoch, commit.version, commit.key, commit.manifest, final))


def ask_for_last_checkpoint(context: PlannerContext) -> None:
    """Once all steps are committed, have the trainer save a checkpoint: it does not know which step is the last."""
    trainer, version = context.state.trainer, context.state.version
    link = context.trainer_link
    if trainer is None or not link.accepted or link.checkpoint_asked == (trainer.attempt, version):
        return
    if _lacks_last_checkpoint(context):
        _resume(context, trainer.attempt)


def _lacks_last_checkpoint(context: PlannerContext) -> bool:
    version, saved = context.state.version, context.state.checkpoint
    return version >= context.last_version and (saved is None or saved.version < version)


def on_checkpoint_written(context: PlannerContext, event: CheckpointWritten) -> None:
    """Optimizer state after a committed version is durable."""
    newest = context.state.checkpoint
    # A replaced gang may have saved after a step that was never committed.
    committed = context.state.lineage.get(event.version) == event.manifest
    if committed and (newest is None or event.version > newest.version):
        context.emit(CheckpointSaved(event.version, event.attempt, event.key))


def on_optimizer_reset(context: PlannerContext, event: OptimizerReset) -> None:
    """The trainer in charge misses optimizer state: say so where the user looks; nothing else follows."""
    trainer = context.state.trainer
    if trainer is not None and event.attempt == trainer.attempt:
        context.optimizer_reset = event.message
        publish(context)


def on_payload_missing(context: PlannerContext, event: PayloadMissing) -> None:
    """The trainer could not read payloads: abort their groups, and start the step over without them."""
    trainer = context.state.trainer
    if trainer is None or (event.attempt, event.epoch) != (trainer.attempt, trainer.epoch):
        return
    lost = {group_of(t) for t in event.trajectories if group_of(t) in context.state.groups}
    if not lost:  # the groups were aborted before: their Resume is on its way
        return
    _resume(context, event.attempt)
    for group in sorted(lost):
        endings.abort_group(context, group, "PayloadLost")


def assign_micro_batches(context: PlannerContext) -> None:
    """Assign micro-batches of the current step: as each fills, or all at once under `Synchronous`."""
    state, buffer = context.state, context.state.buffers.current
    if not context.trainer_link.accepted or buffer is None:
        return
    occupied = buffer.count(EntryState.OCCUPIED)
    whole = occupied + buffer.count(EntryState.TRAINING) == buffer.capacity
    if not occupied or (buffer.mode == Mode.SYNCHRONOUS and not whole):
        return
    ready = buffer.groups(EntryState.OCCUPIED)
    limit = context.spec.trainer.micro_batch_tokens
    batch: list[str] = []
    tokens = items = 0
    for group in ready:
        siblings = state.groups[group].siblings
        size = sum(s.payload.tokens for s in siblings if s.payload is not None)
        if batch and (tokens + size > limit or items + len(siblings) > MICRO_BATCH_ITEMS):
            _assign(context, batch, last=False)
            batch, tokens, items = [], 0, 0
        batch.append(group)
        tokens += size
        items += len(siblings)
    if batch and (whole or tokens >= limit):
        _assign(context, batch, last=whole)


def _assign(context: PlannerContext, groups: list[str], *, last: bool) -> None:
    state, trainer, buffer = context.state, context.state.trainer, context.state.buffers.current
    if trainer is None or buffer is None:
        return
    number = len(state.micro_batches)
    assigned = MicroBatchAssigned(buffer.step, number, trainer.attempt, context.epoch, tuple(groups), last)
    context.emit(assigned)
    if last:
        context.admission.step_is_whole(context.now)
    context.act(SendToTrainer(trainer.attempt, _message(context, assigned)))


def _message(context: PlannerContext, assigned: MicroBatchAssigned) -> MicroBatch:
    """The message of a micro-batch of the current step."""
    return MicroBatch(
        step=assigned.step,
        micro_batch=assigned.micro_batch,
        attempt=assigned.attempt,
        epoch=assigned.epoch,
        resume=context.trainer_link.resume_number,
        max_staleness=context.state.buffers.buffers[assigned.step].max_staleness,
        items=tuple(
            item for group in assigned.groups for item in _items(context, context.state.groups[group])
        ),
        last=assigned.last,
        retention=endings.retention(context),
    )


def _items(context: PlannerContext, group: GroupState) -> list[TrainingItem]:
    rewards = [s.reward or 0.0 for s in group.siblings]
    advantages = group_advantages(rewards, scale_by_std=context.spec.algorithm.scale_by_std)
    return [
        TrainingItem(
            trajectory=s.id,
            attempt=s.attempt,
            group=group.id,
            reward=reward,
            advantage=advantage,
            span=s.payload.span,
            tokens=s.payload.tokens,
            digest=s.payload.digest,
            sequence=s.payload.sequence,
            index=s.payload.index,
        )
        for s, reward, advantage in zip(group.siblings, rewards, advantages, strict=True)
        if s.payload is not None
    ]


def revoke(
    context: PlannerContext,
    version: int,
    *,
    chain: Sequence[StepCommitted],
    checkpoint: CheckpointSaved | None,
) -> None:
    """Go back to `version` at the user's request, right after the epoch was claimed: all later ones are revoked.

    Nothing is planned here: the next coordinator continues from `version`, with the next prompts.

    Args:
        chain: commits of versions 1, 2, … up to the ledger's newest.
        checkpoint: the optimizer state to continue with, of `version` or an earlier one; None for a fresh state.
    """
    target = chain[version - 1] if version else None
    revoked = VersionsRevoked(
        version=version,
        key=target.key if target is not None else None,
        manifest=target.manifest if target is not None else "",
        checkpoint=checkpoint.key if checkpoint is not None else None,
        checkpoint_version=checkpoint.version if checkpoint is not None else None,
        trajectories=sum(len(part) for commit in chain[version:] for part in commit.micro_batches),
    )
    context.emit(revoked)
    announce(context)
    context.act(PublishMetrics(replace(metrics_line(context), gone_back=True)))
