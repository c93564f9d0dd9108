"""What this coordinator has sent to the trainer gang; the ledger holds only which gang is in charge.

`JobState.trainer` is the fence `(attempt, epoch)`. This is the conversation that follows it: whether the gang has
answered to this coordinator's epoch, and the newest `Resume` that it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.messages import Resume


@dataclass(slots=True)
class TrainerLink:
    """The conversation with the trainer.

    Attributes:
        accepted: whether a gang has answered to this coordinator's epoch. No micro-batch is sent before.
        resumed: the newest `Resume` that this coordinator sent; None before the first.
        waits_after: the version at which the trainer said that it waits, and the micro-batches of the step that it had
            taken; None if it has not.
        checkpoint_asked: attempt and version for which the job's last checkpoint was asked for.
    """

    accepted: bool = False
    resumed: Resume | None = None
    waits_after: tuple[int, int] | None = None
    checkpoint_asked: tuple[int, int] | None = None

    @property
    def resume_number(self) -> int:
        """Number of the newest `Resume`, which micro-batches name; 0 if none was sent."""
        return self.resumed.number if self.resumed is not None else 0

    def next_resume_number(self, attempt: int, *, in_charge: int | None) -> int:
        """Number of the next `Resume` to `attempt`: `Resume`s of one attempt count from 1.

        Args:
            in_charge: the attempt that the ledger has in charge, if any.
        """
        before = self.resumed
        if before is None or in_charge is None or not in_charge == attempt == before.attempt:
            return 1
        return before.number + 1
