"""`SiblingIndex`: which siblings of open groups are at an engine, wait for a score, or are quarantined."""

from __future__ import annotations

from rljob_core.job_state.groups import Sibling
from rljob_core.trajectory import State

_STARTED = frozenset({State.GENERATING, State.GENERATED, State.REWARDED, State.READY, State.TRAINING})


class SiblingIndex:
    """Ids of siblings by what they wait for; states change through it, and nowhere else, so that it follows.

    Attributes:
        generating: by engine, those that it is generating.
        unscored: those that are generated and not rewarded.
        survivors: those that outlived an engine and are unfinished.
        quarantined: those that may be what kills engines.
        started: how many are being generated, or are generated and not consumed.
    """

    def __init__(self) -> None:
        self.generating: dict[str, dict[str, None]] = {}
        self.unscored: dict[str, None] = {}
        self.survivors: dict[str, None] = {}
        self.quarantined: dict[str, None] = {}
        self.started = 0

    def change(self, sibling: Sibling, state: State, *, engine: str | None = None) -> None:
        """Change a sibling's state and, if given, its engine."""
        if sibling.state is State.GENERATING:
            with_engine = self.generating[sibling.engine]
            del with_engine[sibling.id]
            if not with_engine:
                del self.generating[sibling.engine]
        elif sibling.state is State.GENERATED:
            del self.unscored[sibling.id]
        if engine is not None:
            sibling.engine = engine
        self.started += (state in _STARTED) - (sibling.state in _STARTED)
        sibling.state = state
        self.update(sibling)

    def load(self, sibling: Sibling) -> None:
        """Take in a sibling of a loaded snapshot."""
        self.started += sibling.state in _STARTED
        self.update(sibling)

    def update(self, sibling: Sibling) -> None:
        """Take in a sibling as it is now."""
        if sibling.state is State.GENERATING:
            self.generating.setdefault(sibling.engine, {})[sibling.id] = None
        elif sibling.state is State.GENERATED:
            self.unscored[sibling.id] = None
        for ids, belongs in (
            (self.survivors, sibling.is_survivor),
            (self.quarantined, sibling.is_quarantined),
        ):
            if belongs:
                ids[sibling.id] = None
            else:
                ids.pop(sibling.id, None)
