"""How a run of a job ended, and why it failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rljob_core.failures import Failure


class RunExit(StrEnum):
    """How a run ended, as written to `summary.json`."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, and why, if it failed."""

    exit: RunExit
    failure: Failure | None = None

    @classmethod
    def failed(cls, failure: Failure) -> RunEnd:
        """A failure."""
        return cls(RunExit.FAILED, failure)


def reason_of(error: BaseException) -> str:
    """Why a folder cannot be written, without the number of the system's error, and with the file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
