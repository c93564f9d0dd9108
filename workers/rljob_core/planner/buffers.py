"""Which groups hold entries of which staleness buffers: open buffers, exchange groups, reserve free entries."""

from __future__ import annotations

from collections.abc import Collection

from rljob_core.planner import sites
from rljob_core.planner.context import PlannerContext
from rljob_core.records import BufferOpened, GroupMoved, GroupReserved
from rljob_core.staleness import EntryState, StalenessBuffers
from rljob_core.trajectory import group_id


def open_buffers(context: PlannerContext) -> None:
    """Open every buffer whose oldest admissible weights exist, stamped with the bound in force."""
    pipeline = context.spec.pipeline
    for step in context.state.buffers.openable(pipeline.bound, context.spec.steps):
        capacity = context.spec.data.prompts_per_step
        context.emit(BufferOpened(step, pipeline.bound, pipeline.mode, capacity))


def move_groups(context: PlannerContext) -> None:
    """Bring finished groups into the current buffer; see `moves`."""
    buffers, kept = context.state.buffers, sites.kept_waiting(context)
    seen = buffers.changes, kept
    if seen == context.unmoved:
        return  # most observations change no buffer, and a large job's are not searched for each
    for move in moves(buffers, kept):
        context.emit(move)
    context.unmoved = seen if buffers.changes == seen[0] else None


def reserve_groups(context: PlannerContext) -> None:
    """Reserve every free entry for the next prompt's group, the earliest buffer first."""
    for buffer in context.state.buffers.buffers.values():
        while buffer.free > 0:
            prompt, size = context.state.next_prompt, context.spec.data.group_size
            context.emit(GroupReserved(group_id(prompt), prompt, size, buffer.step, buffer.min_version))


def moves(buffers: StalenessBuffers, kept_waiting: Collection[str] = ()) -> list[GroupMoved]:
    """Exchanges of unfinished groups of the current buffer for finished ones of later buffers, where stamps allow.

    The step then does not wait for a long trajectory whose own bound leaves it time. A free entry of the current
    buffer is filled first. Among the unfinished groups, those with the newest base are displaced first: they keep the
    most room.

    Args:
        kept_waiting: groups that wait for a site that is away; they are displaced before the others.
    """
    current = buffers.current
    if current is None or not (current.free or current.count(EntryState.RESERVED)):
        return []
    finished = [
        (later.entries[group].base, later.step, group)
        for later in buffers.buffers.values()
        if later.step > current.step
        for group in later.groups(EntryState.OCCUPIED)
        if current.admits(later.entries[group].base)
    ]
    if not finished:
        return []
    finished.sort()  # the oldest base first: it has the least room left
    free = current.free
    reserved = current.groups(EntryState.RESERVED)
    unfinished = sorted(((g in kept_waiting, current.entries[g].base, g) for g in reserved), reverse=True)
    result: list[GroupMoved] = []
    for _, source, group in finished:
        if free > 0:
            free -= 1
            result.append(GroupMoved(group, source, current.step))
            continue
        place = next(
            (i for i, (_, base, _) in enumerate(unfinished) if buffers.buffers[source].admits(base)), None
        )
        if place is not None:
            result.append(GroupMoved(group, source, current.step, unfinished.pop(place)[2]))
    return result
