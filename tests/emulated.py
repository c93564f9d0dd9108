"""The parts of a job's spec by which its engines and its trainer sleep where they would compute."""

from __future__ import annotations

from typing import Any


def emulated(*, step_seconds: float = 0.2, decode_seconds: float = 0.02) -> dict[str, Any]:
    """Engines and a trainer that sleep: processes that start fast, steps of a known pace."""
    lengths = {"median": 6, "min": 2, "max": 12}
    engine = {
        "name": "Emulated",
        "options": {"slots": 16, "stepSeconds": decode_seconds, "lengths": lengths},
    }
    return {
        "rollout": {"engine": engine},
        "trainer": {"backend": "Emulated", "options": {"stepSeconds": step_seconds}},
    }
