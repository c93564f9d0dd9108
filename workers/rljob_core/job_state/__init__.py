"""A job's state: the fold of its ledger. Nothing else changes it.

The coordinator applies each record that it is about to append; a restarted coordinator applies the records that it
reads back. Both end in the same state (`JobState.apply`).
"""

from rljob_core.job_state.dispatch_order import DispatchOrder
from rljob_core.job_state.groups import QUARANTINE_DEATHS, GroupState, Sibling, Untrained
from rljob_core.job_state.state import ENGINE_LOST, Commit, JobState

__all__ = [
    "ENGINE_LOST",
    "QUARANTINE_DEATHS",
    "Commit",
    "DispatchOrder",
    "GroupState",
    "JobState",
    "Sibling",
    "Untrained",
]
