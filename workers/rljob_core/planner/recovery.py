"""Commits that a coordinator restores after it has claimed its epoch, because the ledger has lost them.

JetStream acknowledges a message before it is on disk, so a machine that dies can take the end of the ledger with it.
Weight manifests were durable before their commits were recorded, and each embeds its commit's record: a chain of
manifests that starts at the ledger's last commit shows how the ledger continued. A manifest alone does not prove a
commit, as its gang may have been fenced, so a manifest that contradicts the ledger is ignored. It counts nevertheless
if something exists that only follows a commit: a manifest whose parent it is, or its announcement. See
`docs/design/staleness.md`, *Restored*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rljob_core.actions import StoresRead
from rljob_core.job_state import JobState
from rljob_core.planner import buffers, spec_change
from rljob_core.planner.context import PlannerContext
from rljob_core.records import EPOCH_STRIDE, StepCommitted, StepRestored
from rljob_core.trajectory import prompt_of_group


def restore(context: PlannerContext, found: StoresRead) -> None:
    """Record every commit that was, or may have been, made after the ledger's last one."""
    if context.state.finished is not None:
        return
    proven = {found.announced, *(p.parent for p in found.proposals)}
    while candidates := [p for p in found.proposals if _follows(context.state, p, proven)]:
        commit = max(candidates, key=lambda p: (p.manifest in proven, _gang_order(p), p.key))
        later = {group for p in found.proposals if p.version > commit.version for group in p.siblings}
        if later:
            # What this step leaves for the next ones needs their buffers, as it had them when this was committed.
            spec_change.on_pipeline_changed(context, context.spec.pipeline)
            buffers.open_buffers(context)
        context.emit(restored(context.state, commit, kept=later))


def _follows(state: JobState, proposal: StepCommitted, proven: set[str]) -> bool:
    """Whether a proposal is the next version, and nothing in the ledger shows that it was never committed."""
    if (proposal.version, proposal.parent) != (state.version + 1, state.commit.manifest):
        return False
    if any(_has_ended(state, group) for group in proposal.siblings):
        return False
    return proposal.manifest in proven or _may_be_next(state, proposal)


def _may_be_next(state: JobState, proposal: StepCommitted) -> bool:
    """Whether the proposal's gang can have been in charge after the end of the ledger."""
    if state.trainer is None:
        return True
    if (proposal.attempt, proposal.epoch) == (state.trainer.attempt, state.trainer.epoch):
        assigned = state.assigned()
        return proposal.micro_batches[: len(assigned)] == assigned
    in_charge = (state.trainer.epoch // EPOCH_STRIDE, state.trainer.attempt)
    return _gang_order(proposal) > in_charge


def _gang_order(proposal: StepCommitted) -> tuple[int, int]:
    """Count of the writer epoch, and the trainer's attempt: the newer gang has the greater pair."""
    return proposal.epoch // EPOCH_STRIDE, proposal.attempt


def _has_ended(state: JobState, group: str) -> bool:
    prompt = prompt_of_group(group)
    return group not in state.groups and (prompt < state.next_prompt or prompt in state.restored)


def restored(state: JobState, commit: StepCommitted, kept: Collection[str] = ()) -> StepRestored:
    """The record of a restored commit; other groups in its step's buffer move to the first buffer that admits them.

    Args:
        state: of the job.
        commit: the one to restore.
        kept: groups that find room before others, as later commits have consumed them: those that are dropped cannot be
            in any.
    """
    groups = commit.siblings
    room: Counter[int] = Counter()
    for buffer in state.buffers.buffers.values():
        room[buffer.step] = buffer.free + sum(group in groups for group in buffer.entries)
    moved: dict[str, int] = {}
    dropped: list[str] = []
    current = state.buffers.current
    left = [e for e in current.entries.values() if e.group not in groups] if current is not None else []
    for entry in sorted(left, key=lambda entry: entry.group not in kept):
        later = (b for b in state.buffers.buffers.values() if b.step > commit.version - 1)
        untouched = state.groups[entry.group].is_untouched
        target = next(
            (b.step for b in later if room[b.step] > 0 and (untouched or b.admits(entry.base))), None
        )
        if target is None:
            dropped.append(entry.group)
        else:
            room[target] -= 1
            moved[entry.group] = target
    return StepRestored(commit, moved, tuple(dropped))
