"""The ways to doctor a copy, each registered with what the audit must say of it.

The run has 6 steps of 4 groups of 2, maxStaleness 2, and evaluations of versions 0, 3 and 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from doctored_run import DoctoredRun

HOLDS, VIOLATED, UNFINISHED, DAMAGED = "holds", "violated", "unfinished", "damaged"


@dataclass(frozen=True)
class Doctoring:
    """One way to doctor a copy.

    Attributes:
        verdict: what the audit must conclude.
        what: the part of the run that was altered, for the table in docs/audit.md.
    """

    apply: Callable[[DoctoredRun], Any]
    verdict: str
    what: str


DOCTORINGS: dict[str, Doctoring] = {}


def expect(verdict: str, what: str) -> Callable[[Callable[[DoctoredRun], Any]], Callable[[DoctoredRun], Any]]:
    def register(apply: Callable[[DoctoredRun], Any]) -> Callable[[DoctoredRun], Any]:
        DOCTORINGS[apply.__name__] = Doctoring(apply, verdict, what)
        return apply

    return register
