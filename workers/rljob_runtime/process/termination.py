"""Says why a worker's process ends: as the last line of its log, and in its termination message."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.words import error_in_words

log = logging.getLogger("rljob")


def terminate(prefix: str, message: str) -> None:
    """Leave this message, in the termination message behind a prefix of `worker_protocol`."""
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    path = os.environ.get(worker_protocol.TERMINATION_LOG)
    if path:
        # The operator reads the prefix, because torchrun always exits with 1.
        Path(path).write_text(
            f"{prefix}{message}"[: worker_protocol.LONGEST_MESSAGE], encoding="utf-8", errors="replace"
        )


def crashed(name: str, error: BaseException) -> None:
    """Leave the error as the last line of the log, and as termination message unless another rank left one before."""
    log.error("%s crashed", name, exc_info=error)
    words = error_in_words(error)
    path = os.environ.get(worker_protocol.TERMINATION_LOG)
    if path and Path(path).exists() and Path(path).stat().st_size:
        print(f"error: {words}", file=sys.stderr)  # noqa: T201
    else:
        terminate("", words)
