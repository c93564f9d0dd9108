"""A job's state with the commits of all its versions, for going back to an earlier one."""

from __future__ import annotations

from rljob_core.job_state import JobState
from rljob_core.records import CheckpointSaved, Record, StepCommitted, StepRestored, VersionsRevoked


class VersionedState(JobState):
    """The fold of a whole ledger, from its first record on.

    Attributes:
        chain: commits of versions 1, 2, …, the newest last; without those that were revoked.
        checkpoints: after versions of the chain, in the order in which they were written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.chain: list[StepCommitted] = []
        self.checkpoints: list[CheckpointSaved] = []

    def is_committed(self, version: int, manifest: str) -> bool:
        """Whether the version of that number is the one whose manifest has this digest."""
        return 0 < version <= len(self.chain) and self.chain[version - 1].manifest == manifest

    def apply(self, record: Record) -> None:
        """Change the state by one record; see `JobState.apply`."""
        super().apply(record)
        match record:
            case StepCommitted():
                self.chain.append(record)
            case StepRestored():
                self.chain.append(record.commit)
            case VersionsRevoked():
                del self.chain[record.version :]
                self.checkpoints = [saved for saved in self.checkpoints if saved.version <= record.version]
            case CheckpointSaved():
                self.checkpoints.append(record)
