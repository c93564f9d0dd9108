"""Says that a worker is ready, by a file that the kubelet's probe or `rljob run` looks for."""

from __future__ import annotations

import os
from pathlib import Path

from rljob_core import worker_protocol


def mark_ready() -> None:
    """Create the file that `READY_FILE` names, if it names one; if it is there, its time becomes now."""
    path = os.environ.get(worker_protocol.READY_FILE)
    if path:
        Path(path).touch()


def unmark_ready() -> None:
    """Remove that file."""
    path = os.environ.get(worker_protocol.READY_FILE)
    if path:
        Path(path).unlink(missing_ok=True)
