"""Which trajectories may resume from stored progress, and the lookups of that progress.

A trajectory whose engine was lost is `interrupted`. The planner looks its newest progress up (`FindProgress`); while
the lookup is `pending` the trajectory is not dispatched; what was `found` is kept until its attempt ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_core.actions import ProgressFound, StoredProgress
from rljob_core.job_state import Sibling
from rljob_core.planner.stored_messages import AttemptKey

HERE = ("", 0)
"""Of a trajectory whose progress is on its way from no site."""


@dataclass(slots=True)
class HeldLookup:
    """Lookups that wait for the progress of a site (`site_marks`).

    Attributes:
        site: where the trajectories were generated.
        mark: number of the mark behind their progress.
        wanted: the trajectories, each with the attempt that waits.
        beats: of the site that have come back since.
    """

    site: str
    mark: int
    wanted: dict[str, int]
    beats: int = 0


@dataclass(slots=True)
class ProgressLookups:
    """Lookups of stored progress.

    Attributes:
        interrupted: ids of trajectories that may resume and have not been looked up, each with the site at which it
            was generated, and the number of the mark behind its progress; 0 if that is still to be sent.
        held: lookups that wait for a site's progress; they are pending, too.
        pending: attempt, by trajectory id, of each lookup without an answer.
        found: the progress that lookups found, by trajectory id and the attempt that may inherit it.
        listed_version: the version at which the stored progress was last listed, to delete what no attempt needs.
    """

    interrupted: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: list[HeldLookup] = field(default_factory=list)
    pending: dict[str, int] = field(default_factory=dict)
    found: dict[AttemptKey, StoredProgress] = field(default_factory=dict)
    listed_version: int = -1

    def pop_interrupted(self) -> dict[str, tuple[str, int]]:
        """Every interrupted trajectory, with its site and mark; there are none afterwards."""
        interrupted, self.interrupted = self.interrupted, {}
        return interrupted

    def answer(self, answer: ProgressFound) -> None:
        """Take the answer to a pending lookup; answers about other attempts are ignored."""
        if self.pending.get(answer.trajectory) != answer.attempt:
            return
        del self.pending[answer.trajectory]
        if answer.progress is not None:
            self.found[answer.trajectory, answer.attempt] = answer.progress

    def is_pending(self, sibling: Sibling) -> bool:
        """Whether the sibling's current attempt waits for the answer to a lookup."""
        return self.pending.get(sibling.id) == sibling.attempt

    def listing_is_due(self, version: int) -> bool:
        """True once per version: the stored progress is to be listed now."""
        due, self.listed_version = self.listed_version != version, version
        return due
