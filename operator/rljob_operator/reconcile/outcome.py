"""How a job ended whose reconciles one caller runs, as `rljob run` does."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.spec import RLJobStatus
from rljob_operator.decisions.status import Phase


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """How a job ended: `phase` is any but RUNNING; `reason` and `message` are its condition's."""

    phase: Phase
    reason: str
    message: str
    status: RLJobStatus
