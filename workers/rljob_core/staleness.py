"""Staleness buffers: a group takes its place in a coming step before it is generated, so none can become too stale.

The trainer is *at* version `v` while it computes the step that turns `v` into `v + 1`. Buffer `v` holds the
groups that this step will consume, one entry per group. A group with base `b` (the minimum version over its
siblings) may be in buffer `v` only if `v − b ≤ η_v`, where `η_v` was stamped when the buffer opened.

Every method that would break this raises `ProtocolViolation` and changes nothing; `consume` checks once more and
raises `StalenessExceeded`.

The method is that of StaleFlow. `docs/design/staleness.md` has the whole protocol and its proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from rljob_core.errors import ProtocolViolation, StalenessExceeded


class EntryState(StrEnum):
    """What a buffer's entry holds."""

    RESERVED = "reserved"
    OCCUPIED = "occupied"
    TRAINING = "training"


@dataclass(slots=True)
class Entry:
    """A group's place in a buffer.

    Attributes:
        base: a version of which it is known that no token of the group is older. For a sibling that is generating,
            that is the minVersion it was sent with, since no engine starts below it.
    """

    group: str
    base: int
    state: EntryState = EntryState.RESERVED


@dataclass
class Buffer:
    """The coming step's batch: `capacity` entries under the stamp `max_staleness`.

    Attributes:
        entries: in order of reservation, moved ones last.
    """

    step: int
    max_staleness: int
    mode: str
    capacity: int
    entries: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Names by state: a large batch is not searched for the few groups that are ready.
        self._by_state: dict[EntryState, dict[str, None]] = {state: {} for state in EntryState}
        for entry in self.entries.values():
            self._by_state[entry.state][entry.group] = None

    @property
    def free(self) -> int:
        """Entries that can still be reserved."""
        return self.capacity - len(self.entries)

    @property
    def min_version(self) -> int:
        """The oldest weights that may produce anything for this buffer."""
        return max(0, self.step - self.max_staleness)

    def admits(self, base: int) -> bool:
        """Whether a group of this base is within the stamp: `step − base ≤ max_staleness`."""
        return self.step - base <= self.max_staleness

    def groups(self, state: EntryState) -> list[str]:
        """Groups whose entries are in that state, in the order in which they entered it."""
        return list(self._by_state[state])

    def count(self, state: EntryState) -> int:
        """How many entries are in that state."""
        return len(self._by_state[state])

    def put(self, entry: Entry) -> None:
        """Add a group's entry to this buffer."""
        self.entries[entry.group] = entry
        self._by_state[entry.state][entry.group] = None

    def take(self, group: str) -> Entry:
        """Remove a group's entry from this buffer."""
        entry = self.entries.pop(group)
        del self._by_state[entry.state][group]
        return entry

    def mark(self, entry: Entry, state: EntryState) -> None:
        """Change the state of one of this buffer's entries."""
        del self._by_state[entry.state][entry.group]
        entry.state = state
        self._by_state[state][entry.group] = None


class StalenessBuffers:
    """All open buffers, from the trainer's current step on.

    Attributes:
        version: the trainer's current step.
        buffers: by step.
        next_step: whose buffer opens next.
        changes: how often anything has changed: while it stays the same, so does everything that follows from it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.changes = 0
        self.buffers: dict[int, Buffer] = {}
        self.next_step = 0
        self._where: dict[str, int] = {}

    @classmethod
    def of(cls, version: int, next_step: int, buffers: Iterable[Buffer]) -> Self:
        """Rebuild the buffers of a snapshot."""
        restored = cls()
        restored.version, restored.next_step = version, next_step
        restored.buffers = {buffer.step: buffer for buffer in buffers}
        restored._where = {group: b.step for b in restored.buffers.values() for group in b.entries}
        return restored

    def __contains__(self, group: str) -> bool:
        return group in self._where

    def openable(self, max_staleness: int, steps: int) -> range:
        """Steps whose buffers may open now under `max_staleness`: their oldest admissible weights exist."""
        return range(self.next_step, min(steps, self.version + max_staleness + 1))

    def open(self, *, step: int, max_staleness: int, mode: str, capacity: int) -> None:
        """Open the next buffer and stamp it."""
        self.changes += 1
        if step != self.next_step:
            raise ProtocolViolation(f"buffer {step} cannot open: the next one is {self.next_step}")
        if step - max_staleness > self.version:
            raise ProtocolViolation(
                f"buffer {step} cannot open at version {self.version} with bound {max_staleness}"
            )
        self.buffers[step] = Buffer(step, max_staleness, mode, capacity)
        self.next_step = step + 1

    def reserve(self, *, group: str, step: int, base: int) -> None:
        """Give a group an entry, before its generation starts."""
        self.changes += 1
        buffer = self._buffer(step)
        if group in self._where:
            raise ProtocolViolation(f"{group} already has an entry in buffer {self._where[group]}")
        if buffer.free <= 0:
            raise ProtocolViolation(f"buffer {step} is full: {group} cannot be reserved")
        self._admit(buffer, group, base)
        buffer.put(Entry(group, base))
        self._where[group] = step

    def rebase(self, *, group: str, base: int) -> None:
        """Set a reserved group's base, which has become known more exactly."""
        self.changes += 1
        buffer, entry = self._entry(group, EntryState.RESERVED)
        self._admit(buffer, group, base)
        entry.base = base

    def occupy(self, *, group: str, base: int) -> None:
        """All siblings are rewarded; `base` is the oldest version that really produced a token of them."""
        self.changes += 1
        buffer, entry = self._entry(group, EntryState.RESERVED)
        self._admit(buffer, group, base)
        entry.base = base
        buffer.mark(entry, EntryState.OCCUPIED)

    def reopen(self, *, group: str, base: int) -> None:
        """A sibling of an occupied group must be generated again: the entry is only reserved."""
        self.changes += 1
        buffer, entry = self._entry(group, EntryState.OCCUPIED)
        self._admit(buffer, group, base)
        entry.base = base
        buffer.mark(entry, EntryState.RESERVED)

    def move(self, *, group: str, target: int) -> None:
        """Move a group that is not in training to a free entry of another buffer, whose stamp it must satisfy."""
        self.changes += 1
        source = self.buffer_of(group)
        entry = source.entries[group]
        if entry.state is EntryState.TRAINING:
            raise ProtocolViolation(f"{group} is in training: it does not move")
        buffer = self._buffer(target)
        if buffer.free <= 0:
            raise ProtocolViolation(f"buffer {target} is full: {group} cannot move there")
        self._admit(buffer, group, entry.base)
        buffer.put(source.take(group))
        self._where[group] = target

    def swap(self, *, group: str, displaced: str) -> None:
        """Exchange the entries of two groups; each must satisfy the stamp of the buffer that it moves to."""
        self.changes += 1
        one, other = self.buffer_of(group), self.buffer_of(displaced)
        mover, yielder = one.entries[group], other.entries[displaced]
        if EntryState.TRAINING in (mover.state, yielder.state):
            raise ProtocolViolation(f"{group} or {displaced} is in training: neither moves")
        self._admit(other, group, mover.base)
        self._admit(one, displaced, yielder.base)
        mover, yielder = one.take(group), other.take(displaced)
        one.put(yielder)
        other.put(mover)
        self._where[group], self._where[displaced] = other.step, one.step

    def train(self, *, group: str) -> None:
        """The group is assigned to the trainer; from here on it does not move."""
        self.changes += 1
        buffer, entry = self._entry(group, EntryState.OCCUPIED)
        if buffer.step != self.version:
            raise ProtocolViolation(f"{group} is in buffer {buffer.step}, the trainer is at {self.version}")
        self._check_staleness(buffer, entry)
        buffer.mark(entry, EntryState.TRAINING)

    def give_back(self, *, group: str) -> None:
        """A group that was in training and not committed is ready again."""
        self.changes += 1
        buffer, entry = self._entry(group, EntryState.TRAINING)
        buffer.mark(entry, EntryState.OCCUPIED)

    def consume(self, step: int) -> list[str]:
        """The step is committed: its groups are consumed and the trainer is at `step + 1`.

        Raises:
            StalenessExceeded: a group is past the stamp of its buffer.
            ProtocolViolation: the step is not the current one, or not its whole batch is in training.
        """
        self.changes += 1
        buffer = self._buffer(step)
        if step != self.version:
            raise ProtocolViolation(f"step {step} cannot be consumed: the trainer is at {self.version}")
        if buffer.free or buffer.count(EntryState.TRAINING) < buffer.capacity:
            raise ProtocolViolation(f"step {step} cannot be consumed: its batch is not whole in training")
        for entry in buffer.entries.values():
            self._check_staleness(buffer, entry)
        del self.buffers[step]
        for group in buffer.entries:
            del self._where[group]
        self.version = step + 1
        return list(buffer.entries)

    def restore(self, step: int, *, groups: Iterable[str], moved: Mapping[str, int]) -> None:
        """Consume a step whose commit the ledger had lost.

        Args:
            groups: the groups that the step consumed, in whichever buffers they have entries, if any.
            moved: other groups of the step's buffer, and the steps to whose buffers they move; any further group in
                it must have been aborted.
        """
        self.changes += 1
        if step != self.version:
            raise ProtocolViolation(f"step {step} cannot be restored: the trainer is at {self.version}")
        for group in groups:
            if group in self._where:
                self.abort(group)
        for group, target in moved.items():
            if self.entry_of(group).state is EntryState.TRAINING:
                self.give_back(group=group)
            self.move(group=group, target=target)
        buffer = self.buffers.pop(step, None)
        if buffer is not None and buffer.entries:
            raise ProtocolViolation(
                f"step {step} cannot be restored: {', '.join(buffer.entries)} have no place"
            )
        self.version = step + 1
        self.next_step = max(self.next_step, step + 1)

    def revoke(self, version: int) -> None:
        """Go back to `version`: close all buffers; their groups have no entries any more."""
        self.changes += 1
        self.buffers.clear()
        self._where.clear()
        self.version = self.next_step = version

    def abort(self, group: str) -> None:
        """The group ends without being consumed; only this frees its entry."""
        self.changes += 1
        self.buffer_of(group).take(group)
        del self._where[group]

    def buffer_of(self, group: str) -> Buffer:
        """The buffer that holds the group."""
        try:
            return self.buffers[self._where[group]]
        except KeyError:
            raise ProtocolViolation(f"{group} has no entry in any buffer") from None

    def entry_of(self, group: str) -> Entry:
        """The group's entry."""
        return self.buffer_of(group).entries[group]

    @property
    def current(self) -> Buffer | None:
        """The buffer that the trainer consumes next, if it is open."""
        return self.buffers.get(self.version)

    def _buffer(self, step: int) -> Buffer:
        try:
            return self.buffers[step]
        except KeyError:
            raise ProtocolViolation(f"buffer {step} is not open") from None

    def _entry(self, group: str, state: EntryState) -> tuple[Buffer, Entry]:
        buffer = self.buffer_of(group)
        entry = buffer.entries[group]
        if entry.state is not state:
            raise ProtocolViolation(f"{group} is {entry.state}, not {state}")
        return buffer, entry

    @staticmethod
    def _admit(buffer: Buffer, group: str, base: int) -> None:
        if not buffer.admits(base):
            raise ProtocolViolation(
                f"{group} with base {base} is not admissible in buffer {buffer.step} (bound {buffer.max_staleness})"
            )

    @staticmethod
    def _check_staleness(buffer: Buffer, entry: Entry) -> None:
        if not buffer.admits(entry.base):
            raise StalenessExceeded(
                f"{entry.group}: staleness {buffer.step - entry.base} exceeds the bound {buffer.max_staleness} "
                f"of step {buffer.step}"
            )
