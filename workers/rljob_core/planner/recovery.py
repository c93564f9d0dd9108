"""What a coordinator takes back after it has claimed its epoch: commits that the ledger has lost.

JetStream acknowledges before it syncs, so the end of the ledger may be lost with its machine. Manifests were durable
before their commits were recorded, and each embeds its commit's record: a chain of them that starts at the ledger's
last commit says how it went on. A manifest alone does not prove a commit (its gang may have been fenced), so one that
the ledger contradicts is passed over, unless what can only come after a commit shows that there was one: a manifest
that it is the parent of, or its announcement.
"""

from __future__ import annotations

from collections import Counter

from rljob_core.actions import StoresRead
from rljob_core.job_state import JobState
from rljob_core.planner.context import PlannerContext
from rljob_core.records import EPOCH_STRIDE, StepCommitted, StepRestored
from rljob_core.trajectory import prompt_of_group

Charge = tuple[int, int]
"""Count of the writer epoch, trainer's attempt: the newer gang has the greater one."""


def restore(context: PlannerContext, found: StoresRead) -> None:
    """Record every commit that was, or could have been, made after the ledger's last."""
    if context.state.finished is not None:
        return
    proven = {found.announced, *(p.parent for p in found.proposals)}
    while candidates := [p for p in found.proposals if _follows(context.state, p, proven)]:
        commit = max(candidates, key=lambda p: (p.manifest in proven, _fence(p), p.key))
        context.emit(_restored(context.state, commit))


def _follows(state: JobState, proposal: StepCommitted, proven: set[str]) -> bool:
    """Whether it is the next version, and the ledger does not say that it was never committed."""
    if (proposal.version, proposal.parent) != (state.version + 1, state.commit.manifest):
        return False
    if any(_has_ended(state, group) for group in proposal.siblings):
        return False
    return proposal.manifest in proven or _may_be_next(state, proposal)


def _may_be_next(state: JobState, proposal: StepCommitted) -> bool:
    """Whether its gang was in charge when the ledger breaks off."""
    if state.trainer is None:
        return True
    if (proposal.attempt, proposal.epoch) == (state.trainer.attempt, state.trainer.epoch):
        assigned = state.assigned()
        return proposal.micro_batches[: len(assigned)] == assigned
    in_charge = (state.trainer.epoch // EPOCH_STRIDE, state.trainer.attempt)
    return _fence(proposal) > in_charge


def _fence(proposal: StepCommitted) -> Charge:
    return proposal.epoch // EPOCH_STRIDE, proposal.attempt


def _has_ended(state: JobState, group: str) -> bool:
    prompt = prompt_of_group(group)
    return group not in state.groups and (prompt < state.next_prompt or prompt in state.restored)


def _restored(state: JobState, commit: StepCommitted) -> StepRestored:
    """The record; what else the ledger has in the step's buffer takes the first place that admits it."""
    groups = commit.siblings
    room: Counter[int] = Counter()
    for buffer in state.buffers.buffers.values():
        room[buffer.step] = buffer.free + sum(group in groups for group in buffer.entries)
    moved: dict[str, int] = {}
    dropped: list[str] = []
    current = state.buffers.current
    for entry in current.entries.values() if current is not None else ():
        if entry.group in groups:
            continue
        later = (b for b in state.buffers.buffers.values() if b.step > commit.version - 1)
        target = next((b.step for b in later if room[b.step] > 0 and b.admits(entry.base)), None)
        if target is None:
            dropped.append(entry.group)
        else:
            room[target] -= 1
            moved[entry.group] = target
    return StepRestored(commit, moved, tuple(dropped))
