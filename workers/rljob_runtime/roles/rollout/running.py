"""What an engine generates, by the name that each assignment has in its engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_core.messages import Generate


def request_id(trajectory: str, attempt: int) -> str:
    """The name of an assignment within its engine: trajectory and attempt."""
    return f"{trajectory}@{attempt}"


def request_of(work: Generate) -> str:
    """The same of an assignment."""
    return request_id(work.trajectory, work.attempt)


@dataclass(frozen=True, slots=True)
class Running:
    """An assignment that the engine generates.

    Attributes:
        work: the assignment.
        prompt: its prompt's tokens, int32 [p].
    """

    work: Generate
    prompt: NDArray[np.int32]
