"""Reward functions that some answers poison, by a word of their prompt."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any


def poisonous(*, completion: str, item: Mapping[str, Any]) -> float:
    """Return 0.0; never return and hear no signal; end or interrupt the process; or return what no sum can hold."""
    match item["question"].split():
        case [_, "spin"]:
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
            while True:
                pass
        case [_, "quit"]:
            sys.exit(3)
        case [_, "interrupt"]:
            raise KeyboardInterrupt
        case [_, "huge" | "both"]:
            return 1.7e308 if len(completion) % 2 else -1.7e308
    return 0.0


def also(*, completion: str, item: Mapping[str, Any]) -> float:
    """Return 0.0, or a second score that no sum can hold."""
    return 1.7e308 if item["question"].endswith(" both") else 0.0
