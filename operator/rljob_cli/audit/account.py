"""What a ledger says of groups, trajectories and commits: the parts of a `history.History`."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_core.records import (
    Generated,
    GroupAborted,
    GroupReserved,
    Inherited,
    MicroBatchAssigned,
    Rewarded,
    StepCommitted,
)


@dataclass(slots=True)
class Member:
    """A trajectory, in the attempt that holds it."""

    attempt: int = 1
    min_version: int | None = None
    inherited: Inherited | None = None
    generated: Generated | None = None
    rewarded: Rewarded | None = None

    @property
    def version(self) -> int | None:
        """The oldest version that produced, or may produce, a token of it; None if it was not sent out yet."""
        if self.generated is not None:
            return self.generated.span.min
        if self.inherited is not None and self.min_version is not None:
            return min(self.min_version, self.inherited.span.min)
        return self.min_version


@dataclass(slots=True)
class Planned:
    """A group from its reservation on."""

    record: GroupReserved
    step: int
    members: dict[str, Member]
    consumed: list[int] = field(default_factory=list)
    aborted: list[GroupAborted] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """It is neither open nor in training."""
        return bool(self.consumed or self.aborted)


@dataclass(frozen=True, slots=True)
class Consumed:
    """A trajectory at the commit that consumed it.

    Attributes:
        attempt: that held it, as far as the ledger knows.
        planned_step: the step in whose buffer its group had its entry; None if the ledger does not know.
    """

    trajectory: str
    step: int
    attempt: int
    generated: Generated | None
    rewarded: Rewarded | None
    planned_step: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit, with the micro-batches that were assigned to its trainer at that moment.

    `restored`: the ledger had lost it, and whatever led to it; it was taken back from its manifest.
    """

    record: StepCommitted
    assigned: tuple[MicroBatchAssigned, ...]
    consumed: tuple[Consumed, ...]
    restored: bool = False
