"""The staleness buffers now: which entries are free, reserved, occupied and in training, against each stamp."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rljob_core.job_state import JobState
from rljob_core.staleness import Buffer, EntryState
from rljob_core.trajectory import State

_BUFFERS_SHOWN = 64


def buffers_document(state: JobState) -> dict[str, Any]:
    """The open buffers, the earliest first, with the states of the siblings behind their entries."""
    buffers = sorted(state.buffers.buffers.values(), key=lambda buffer: buffer.step)
    pipeline = state.pipeline
    return {
        "version": state.buffers.version,
        "mode": pipeline.mode if pipeline else "",
        "max_staleness": pipeline.max_staleness if pipeline else None,
        "buffers": [_buffer(state, buffer) for buffer in buffers[:_BUFFERS_SHOWN]],
        "left_out": max(len(buffers) - _BUFFERS_SHOWN, 0),
        "counts": dict(state.counts),
        "aborted": dict(state.aborted),
        "attempts_failed": dict(state.attempts_failed),
        "open": dict(
            Counter(str(sibling.state) for group in state.groups.values() for sibling in group.siblings)
        ),
    }


def _buffer(state: JobState, buffer: Buffer) -> dict[str, Any]:
    siblings: Counter[State] = Counter()
    bases: Counter[int] = Counter()
    for entry in buffer.entries.values():
        bases[buffer.step - entry.base] += 1
        if entry.state is EntryState.RESERVED and (group := state.groups.get(entry.group)) is not None:
            siblings.update(sibling.state for sibling in group.siblings)
    return {
        "step": buffer.step,
        "mode": buffer.mode,
        "bound": buffer.max_staleness,
        "capacity": buffer.capacity,
        "free": buffer.free,
        "reserved": buffer.count(EntryState.RESERVED),
        "occupied": buffer.count(EntryState.OCCUPIED),
        "training": buffer.count(EntryState.TRAINING),
        "staleness": {str(distance): count for distance, count in sorted(bases.items())},
        "siblings": {str(name): count for name, count in siblings.items()},
    }
