"""What must hold of any ledger, whatever the planner did."""

from __future__ import annotations

from collections import Counter

from rljob_core.records import (
    BufferOpened,
    Generated,
    GroupAborted,
    GroupReserved,
    StepCommitted,
    StepRestored,
)
from rljob_core.trajectory import group_of


def records(world):
    return [r for b in world.ledger for r in b.records]


def check_history(world) -> None:
    """Invariants over the ledger alone, independent of the planner's own state."""
    stamps, planned, spans, aborted, consumed = {}, {}, {}, Counter(), Counter()
    for record in records(world):
        match record:
            case BufferOpened():
                stamps[record.step] = record.max_staleness
            case GroupReserved():
                assert record.group not in planned
                planned[record.group] = record.siblings
            case Generated():
                spans[record.trajectory] = record.span
            case GroupAborted():
                aborted[record.group] += 1
            case (
                StepCommitted(version=version, micro_batches=parts)
                | StepRestored(commit=StepCommitted(version=version, micro_batches=parts))
            ):
                for trajectory in (t for part in parts for t in part):
                    consumed[trajectory] += 1
                    assert version - 1 - spans[trajectory].min <= stamps[version - 1]
    assert all(n == 1 for n in consumed.values())
    done = Counter(group_of(t) for t in consumed)
    for group, siblings in planned.items():
        assert done[group] in (0, siblings)
        assert not (done[group] and aborted[group])
        if not done[group] and not aborted[group]:
            assert group in world.planner.state.groups  # still open: not lost
    assert Counter(t for _, t in world.consumed) == consumed
