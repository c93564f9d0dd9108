"""Groups, trajectories and commits as the audit reads them from the ledger: the parts of a `history.History`."""

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
    """A trajectory, and the records of its current attempt.

    Attributes:
        failures: how many of its attempts have failed.
        deaths: how many engines died that were generating it, since it was generated last, or since a prompt was found
            to have killed them.
    """

    attempt: int = 1
    failures: int = 0
    deaths: int = 0
    min_version: int | None = None
    inherited: Inherited | None = None
    generated: Generated | None = None
    rewarded: Rewarded | None = None

    @property
    def version(self) -> int | None:
        """The oldest version that produced, or may produce, a token of it; None if it was not dispatched yet."""
        if self.generated is not None:
            return self.generated.span.min
        if self.inherited is not None and self.min_version is not None:
            return min(self.min_version, self.inherited.span.min)
        return self.min_version


@dataclass(slots=True)
class Planned:
    """A group that the coordinator has reserved.

    Attributes:
        record: the reservation.
        step: the step whose buffer the group's entry is in now.
        members: the group's trajectories, by id.
        consumed: steps that trained the group; more than one is a violation.
        aborted: records that aborted the group; more than one is a violation.
        assigned: whether it was ever assigned to the trainer.
    """

    record: GroupReserved
    step: int
    members: dict[str, Member]
    consumed: list[int] = field(default_factory=list)
    aborted: list[GroupAborted] = field(default_factory=list)
    assigned: bool = False

    @property
    def ended(self) -> bool:
        """Whether the group was trained or aborted."""
        return bool(self.consumed or self.aborted)


@dataclass(frozen=True, slots=True)
class Consumed:
    """A trajectory as the ledger had it when a commit consumed it.

    Attributes:
        step: the step that trained it.
        attempt: its current attempt at that time, according to the ledger.
        generated: the record of its payload; None if the ledger has none.
        rewarded: the record of its reward; None if the ledger has none.
        planned_step: the step whose buffer had its group's entry; None if the ledger does not have the group.
    """

    trajectory: str
    step: int
    attempt: int
    generated: Generated | None
    rewarded: Rewarded | None
    planned_step: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit, with the micro-batches that were assigned to the trainer for it.

    Attributes:
        restored: the ledger had lost the commit and perhaps records before it; the coordinator restored the commit
            from the version's manifest.
        scales: what `spec.algorithm.scaleByStd` was when it was trained; of a restored commit, what it can have been.
            Empty if the ledger does not have it.
        untrained: rewards of groups that were given up since the commit before.
    """

    record: StepCommitted
    assigned: tuple[MicroBatchAssigned, ...]
    consumed: tuple[Consumed, ...]
    restored: bool = False
    scales: frozenset[bool] = frozenset()
    untrained: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedMoment:
    """What the ledger had when its coordinator published a line of metrics: just after the record that the line tells.

    Attributes:
        writer: number of the coordinator's writer epoch.
        told: what the line must say, by field.
    """

    writer: int
    told: dict[str, object]
