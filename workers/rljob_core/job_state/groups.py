"""Open groups and their siblings, as the ledger leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rljob_core.record_fields import OMITTED_IF_EMPTY
from rljob_core.records import Generated, Inherited
from rljob_core.trajectory import State

QUARANTINE_DEATHS = 3
"""Deaths of engines after which what all of these engines held may be what kills them, and is quarantined.

One death points at everything that one engine held, and most engines die of other causes. Each further one points at
what both engines held. As prompts that outlived the same engine are spread (`planner.placement`), the third points at
one or two.
"""


@dataclass(slots=True)
class Sibling:
    """One trajectory of a group, in its current attempt.

    Attributes:
        engine: the engine that it was sent to last.
        site: where that engine is; empty if it is at the hub.
        min_version: oldest weights that may produce its next token.
        failures: failed attempts.
        first: the oldest attempt whose progress it may inherit: the last one that started from the prompt.
        inherited: progress from which its current attempt resumes.
        deaths: engines that died while they were generating it, since it was generated last.
    """

    id: str
    attempt: int = 1
    state: State = State.RESERVED
    engine: str = ""
    min_version: int = 0
    failures: int = 0
    payload: Generated | None = None
    reward: float | None = None
    first: int = 1
    inherited: Inherited | None = None
    deaths: int = 0
    site: Annotated[str, OMITTED_IF_EMPTY] = ""

    @property
    def is_survivor(self) -> bool:
        """Whether it outlived an engine and is not generated yet."""
        return self.deaths > 0 and self.state in {State.RESERVED, State.GENERATING}

    @property
    def is_quarantined(self) -> bool:
        """Whether it may be what kills engines: it was held through enough deaths and is not generated yet."""
        return self.deaths >= QUARANTINE_DEATHS and self.is_survivor


@dataclass(frozen=True, slots=True)
class Untrained:
    """A group that was given up, of which answers were scored.

    Attributes:
        rewards: of those siblings that had one.
    """

    prompt: int
    reason: str
    rewards: tuple[float, ...]


@dataclass(slots=True)
class GroupState:
    """A group that is open: neither consumed nor aborted."""

    id: str
    prompt: int
    siblings: list[Sibling]

    @property
    def deaths(self) -> int:
        """The most engines that one of its siblings has outlived, since that was generated last."""
        return max(sibling.deaths for sibling in self.siblings)

    @property
    def is_untouched(self) -> bool:
        """Whether no attempt of any sibling is under way or has produced a token that counts."""
        return all(s.state is State.RESERVED for s in self.siblings)

    def base(self, floor: int) -> int:
        """A version than which no token of the siblings is older; a sibling not dispatched counts as `floor`."""
        return min(self._version(s, floor) for s in self.siblings)

    @staticmethod
    def _version(sibling: Sibling, floor: int) -> int:
        if sibling.payload is not None:
            return sibling.payload.span.min
        if sibling.state is not State.GENERATING:
            return floor
        made = sibling.inherited
        return sibling.min_version if made is None else min(made.span.min, sibling.min_version)


_STARTED = frozenset({State.GENERATING, State.GENERATED, State.REWARDED, State.READY, State.TRAINING})


class SiblingIndex:
    """Ids of siblings by what they wait for. States change through it, and nowhere else, so that it follows.

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

    def _change(self, sibling: Sibling, state: State, *, engine: str | None = None) -> None:
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
        self._update(sibling)

    def _load(self, sibling: Sibling) -> None:
        """Take in a sibling of a loaded snapshot."""
        self.started += sibling.state in _STARTED
        self._update(sibling)

    def _update(self, sibling: Sibling) -> None:
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
