"""Cohorts of trajectories that may be what kills engines: each is tried on an engine that holds nothing else.

Nothing of this is in the ledger: a new coordinator makes cohorts again (`quarantine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SUCCESSOR_HEARTBEATS = 30
"""Own heartbeats to wait for a dead engine's successor, before another engine is emptied for a quarantined cohort."""


@dataclass(frozen=True, slots=True)
class EarlyTrial:
    """The group that is tried before it is quarantined (`early_trial`).

    Attributes:
        group: its id.
        failed: its sibling that was alone on an engine that died, if the group may be given up for that; else empty.
        cause: what is known of that engine's end, for people.
        rivals: ids of what could explain the earlier deaths of `failed` then, as it was not generated since.
        has_tokens: whether engines had made tokens of it when they died.
    """

    group: str
    failed: str = ""
    cause: str = ""
    rivals: frozenset[str] = frozenset()
    has_tokens: bool = False


@dataclass(slots=True)
class Cohorts:
    """The cohorts.

    Attributes:
        waiting: ids, in the order in which cohorts are tried; each quarantined one is in one of them until it is none.
        other_work_first: whether an engine that is the only one takes other work before the next trial.
        inherited: groups that had outlived an engine when this coordinator began.
        awaited_since: own heartbeats so far when an engine of quarantined work died, until its successor comes.
        just_begun: groups that outlived an engine which had just begun them.
        reached: how many tokens each trajectory had when an engine died of it or beside it, the last time.
        early: the early trial, if there is one.
    """

    waiting: list[tuple[str, ...]] = field(default_factory=list)
    other_work_first: bool = False
    inherited: frozenset[str] = frozenset()
    awaited_since: int | None = None
    just_begun: frozenset[str] = frozenset()
    reached: dict[str, int] = field(default_factory=dict)
    early: EarlyTrial | None = None

    def insert(self, *cohorts: Sequence[str]) -> None:
        """Try these before all others; they leave the cohorts that they were in."""
        moved = {trajectory for cohort in cohorts for trajectory in cohort}
        others = [tuple(t for t in cohort if t not in moved) for cohort in self.waiting]
        self.waiting = [cohort for cohort in (*map(tuple, cohorts), *others) if cohort]

    def postpone(self, cohort: Sequence[str]) -> None:
        """Try this one after all others."""
        self.insert(cohort)
        self.waiting = [*self.waiting[1:], *self.waiting[:1]]

    def keep(self, quarantined: Mapping[str, str]) -> None:
        """Forget everything that is not quarantined any more."""
        kept = (tuple(t for t in cohort if t in quarantined) for cohort in self.waiting)
        self.waiting = [cohort for cohort in kept if cohort]

    def awaits_successor(self, heartbeats: int) -> bool:
        """Whether an engine may soon come that holds nothing: the successor of one that died."""
        return self.awaited_since is not None and heartbeats - self.awaited_since < SUCCESSOR_HEARTBEATS
