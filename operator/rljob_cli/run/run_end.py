"""How a run of a job ended, and what was at fault."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rljob_core.faults import Fault, fault_of_words


class RunExit(StrEnum):
    """How a run ended, as written to `summary.json`."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, a message about it, and what was at fault if it failed."""

    exit: RunExit
    message: str = ""
    fault: Fault | None = None

    @classmethod
    def failed(cls, message: str, fault: Fault | None = None) -> RunEnd:
        """A failure; if the fault is not given, it is what the message says."""
        return cls(RunExit.FAILED, message, fault or fault_of_words(message))


def reason_of(error: BaseException) -> str:
    """Why a folder cannot be written, without the number of the system's error, and with the file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
