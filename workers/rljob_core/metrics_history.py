"""What kind a line of the metrics stream is, and which lines repeat earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from rljob_core.messages import StepMetrics, tells_evaluation

LineKind = Literal["commit", "evaluation", "end", "other"]


def kind_of(line: StepMetrics) -> LineKind:
    """Return whether a metrics line reports a commit, an evaluation or the end of the job."""
    return kind_by(partial(getattr, line))


def kind_by(field: Callable[[str], object]) -> LineKind:
    """Return the kind of a line by its fields' values; None of one that it lacks."""
    if field("finished"):
        return "end"
    if field("reward_mean") is not None:
        return "commit"
    return "evaluation" if tells_evaluation(field) else "other"


class SeenLines:
    """The lines of a metrics stream so far. A coordinator that takes over may publish one again."""

    def __init__(self) -> None:
        self._seen: set[tuple[LineKind, int]] = set()

    def add(self, line: StepMetrics) -> bool:
        """Add a line and return whether it is new; one by which the user has gone back only makes room for others."""
        if line.gone_back:
            self._seen = {
                (kind, version) for kind, version in self._seen if version <= line.version and kind != "end"
            }
            return False
        key = (kind_of(line), line.version)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True
