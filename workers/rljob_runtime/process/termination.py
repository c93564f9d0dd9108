"""Says why a worker's process ends: as the last line of its log, and in its termination message."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.failures import Failure, Reason, termination_message
from rljob_core.words import error_in_words

log = logging.getLogger("rljob")


def terminate(failure: Failure) -> int:
    """Leave this failure, in the termination message too; returns the exit code."""
    # A fenced writer's detail is what the server refused; that another one took over is what a reader needs to know.
    fenced = "fenced: " if failure.reason is Reason.FENCED else ""
    print(f"error: {fenced}{failure.detail}", file=sys.stderr)  # noqa: T201
    _leave(termination_message(failure))
    return failure.reason.exit_code


def crashed(name: str, error: BaseException) -> None:
    """Leave the error as the last line of the log, and as termination message unless another rank left one before."""
    log.error("%s crashed", name, exc_info=error)
    words = error_in_words(error)
    print(f"error: {words}", file=sys.stderr)  # noqa: T201
    path = os.environ.get(worker_protocol.TERMINATION_LOG)
    if not (path and Path(path).exists() and Path(path).stat().st_size):
        _leave(words)


def _leave(message: str) -> None:
    if path := os.environ.get(worker_protocol.TERMINATION_LOG):
        cut = message[: worker_protocol.LONGEST_MESSAGE]
        Path(path).write_text(cut, encoding="utf-8", errors="replace")
