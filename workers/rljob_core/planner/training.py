"""Micro-batches, commits and the trainer's fence `(attempt, epoch)` (MECHANISMS §3a).

A coordinator gives nothing out before a gang has answered to its epoch; then what was in training and not
committed is ready again. A step is committed by its record alone, and only if it is the next one, from the current
fence, from the committed parent, and of exactly what was assigned.
"""

from __future__ import annotations

from rljob_core.actions import Announce, PublishMetrics, SendToTrainer
from rljob_core.advantage import group_advantages
from rljob_core.job_state import GroupState
from rljob_core.messages import (
    CheckpointWritten,
    Fence,
    Hello,
    MicroBatch,
    PayloadMissing,
    Resume,
    StepProposed,
    TrainerReady,
    TrainingItem,
)
from rljob_core.planner.context import PlannerContext
from rljob_core.records import CheckpointSaved, MicroBatchAssigned, StepCommitted, TrainerAttempt
from rljob_core.spec import Mode
from rljob_core.staleness import EntryState
from rljob_core.trajectory import group_of

MICRO_BATCH_ITEMS = 2048
"""Trajectories of one micro-batch at most, unless one group alone has more: their list is one message."""


def on_trainer_ready(context: PlannerContext, event: TrainerReady) -> None:
    """A gang asks to be taken on, or answers to this coordinator's `Hello`."""
    trainer = context.state.trainer
    if trainer is not None and event.attempt < trainer.attempt:
        context.act(SendToTrainer(event.attempt, Fence(trainer.attempt, context.epoch)))
        return
    context.hear_of(event.epoch)
    if event.epoch < context.epoch:
        context.act(SendToTrainer(event.attempt, Hello(context.epoch)))
        return
    if event.proposal is not None and _commit(context, event.proposal):
        context.act(PublishMetrics(context.figures.stepped(context.metrics_line())))
    if trainer is None or event.attempt > trainer.attempt or not context.trainer_accepted:
        _resume(context, event.attempt)
    else:
        _repeat(context, event)


def _repeat(context: PlannerContext, event: TrainerReady) -> None:
    """A gang that is in charge waits: what it was told may be lost. What it has taken already, it passes over."""
    state, resumed = context.state, context.resumed
    if context.dismissed(event.attempt):
        return
    if resumed is None:
        return
    behind = event.resume < resumed.number
    if behind:
        context.act(SendToTrainer(event.attempt, resumed))
    elif event.proposal is not None and event.proposal.version > state.version:
        _resume(context, event.attempt)  # of another step than was assigned: it starts over
        return
    elif _lacks_last_checkpoint(context):
        _resume(context, event.attempt)
        return
    taken = 0 if behind or event.version != state.version else event.fed
    for assigned in state.micro_batches[taken:]:
        context.act(SendToTrainer(event.attempt, _message(context, assigned)))


def _resume(context: PlannerContext, attempt: int) -> None:
    commit, checkpoint = context.state.commit, context.state.checkpoint
    trainer, before = context.state.trainer, context.resumed
    same = trainer is not None and before is not None and trainer.attempt == attempt == before.attempt
    number = before.number + 1 if same and before is not None else 1
    context.emit(TrainerAttempt(attempt, context.epoch, commit.version))
    context.trainer_accepted = True
    if context.dismissed(attempt):
        return
    last = commit.version >= context.last_version
    if last:
        context.asked = attempt, commit.version
    context.resumed = Resume(
        attempt=attempt,
        epoch=context.epoch,
        number=number,
        version=commit.version,
        key=commit.key,
        manifest=commit.manifest,
        checkpoint=checkpoint.key if checkpoint else None,
        checkpoint_version=checkpoint.version if checkpoint else None,
        last=last,
    )
    context.act(SendToTrainer(attempt, context.resumed))


def on_step_proposed(context: PlannerContext, event: StepProposed) -> None:
    """A step's weights and manifest are durable."""
    if _commit(context, event.proposal):
        context.figures.step(event.stats)
        context.act(PublishMetrics(context.figures.stepped(context.metrics_line())))
        return
    trainer, proposal = context.state.trainer, event.proposal
    in_charge = trainer is not None and (proposal.attempt, proposal.epoch) == (trainer.attempt, trainer.epoch)
    if in_charge and context.trainer_accepted and proposal.version > context.state.version:
        # It holds a step that is not the one that was assigned: it starts over, or nobody would speak again.
        _resume(context, proposal.attempt)


def _commit(context: PlannerContext, proposal: StepCommitted) -> bool:
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
    siblings = [s for g in state.in_training() for s in state.groups[g].siblings]
    context.figures.consumed(siblings, step=state.version)
    context.emit(proposal)
    for sibling in siblings:
        context.let_go(sibling)
    announce(context)
    return True


def announce(context: PlannerContext) -> None:
    """Tell engines of the newest committed version."""
    commit = context.state.commit
    final = commit.version >= context.last_version
    context.act(Announce(context.epoch, commit.version, commit.key, commit.manifest, final))


def ask_for_last_checkpoint(context: PlannerContext) -> None:
    """Once all steps are committed, have the trainer save; it knows neither that nor `spec.steps`, which may change."""
    trainer, version = context.state.trainer, context.state.version
    if trainer is None or not context.trainer_accepted or context.asked == (trainer.attempt, version):
        return
    if _lacks_last_checkpoint(context):
        _resume(context, trainer.attempt)


def _lacks_last_checkpoint(context: PlannerContext) -> bool:
    version, saved = context.state.version, context.state.checkpoint
    return version >= context.last_version and (saved is None or saved.version < version)


def on_checkpoint_written(context: PlannerContext, event: CheckpointWritten) -> None:
    """Optimizer state after a committed version is durable."""
    newest = context.state.checkpoint
    # Of a gang that was replaced, it may be of a step that was never committed.
    committed = context.state.lineage.get(event.version) == event.manifest
    if committed and (newest is None or event.version > newest.version):
        context.emit(CheckpointSaved(event.version, event.attempt, event.key))


def on_payload_missing(context: PlannerContext, event: PayloadMissing) -> None:
    """The trainer could not read payloads: their groups are aborted, and the step starts over without them."""
    trainer = context.state.trainer
    if trainer is None or (event.attempt, event.epoch) != (trainer.attempt, trainer.epoch):
        return
    lost = {group_of(t) for t in event.trajectories if group_of(t) in context.state.groups}
    if not lost:  # dealt with already: the Resume that followed is on its way
        return
    _resume(context, event.attempt)
    for group in sorted(lost):
        context.abort(group, "PayloadLost")


def feed(context: PlannerContext) -> None:
    """Hand out micro-batches of the current step: as they fill, or all at once when `Synchronous`."""
    state, buffer = context.state, context.state.buffers.current
    if not context.trainer_accepted or buffer is None:
        return
    ready = buffer.groups(EntryState.OCCUPIED)
    whole = len(ready) + len(state.in_training()) == buffer.capacity
    if buffer.mode == Mode.SYNCHRONOUS and not whole:
        return
    limit = context.spec.trainer.micro_batch_tokens
    batch: list[str] = []
    tokens = 0
    for group in ready:
        size = sum(s.payload.tokens for s in state.groups[group].siblings if s.payload is not None)
        items = sum(len(state.groups[g].siblings) for g in (*batch, group))
        if batch and (tokens + size > limit or items > MICRO_BATCH_ITEMS):
            _assign(context, batch, last=False)
            batch, tokens = [], 0
        batch.append(group)
        tokens += size
    if batch and (whole or tokens >= limit):
        _assign(context, batch, last=whole)


def _assign(context: PlannerContext, groups: list[str], *, last: bool) -> None:
    state, trainer, buffer = context.state, context.state.trainer, context.state.buffers.current
    if trainer is None or buffer is None:
        return
    number = len(state.micro_batches)
    assigned = MicroBatchAssigned(buffer.step, number, trainer.attempt, context.epoch, tuple(groups), last)
    context.emit(assigned)
    context.act(SendToTrainer(trainer.attempt, _message(context, assigned)))


def _message(context: PlannerContext, assigned: MicroBatchAssigned) -> MicroBatch:
    """What the trainer is told of a micro-batch of the current step."""
    return MicroBatch(
        step=assigned.step,
        micro_batch=assigned.micro_batch,
        attempt=assigned.attempt,
        epoch=assigned.epoch,
        resume=context.resumed.number if context.resumed is not None else 0,
        max_staleness=context.state.buffers.buffers[assigned.step].max_staleness,
        items=tuple(
            item for group in assigned.groups for item in _items(context, context.state.groups[group])
        ),
        last=assigned.last,
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
