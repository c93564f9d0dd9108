"""A reward function that slows real models down, so that a job does not end before all kills are done."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECONDS = 0.04  # for each answer, one after the other in whatever process: 0.3 s for each step


def paced(*, completion: str, item: Mapping[str, Any]) -> float:
    """Return 0.0 after a fixed delay."""
    with Path(__file__).open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        time.sleep(_SECONDS)
    return 0.0
