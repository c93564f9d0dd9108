"""Records of single siblings: dispatched, generated, rewarded, reset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class Inherited:
    """What an attempt goes on from: the newest progress of one before it.

    Attributes:
        attempt: the one that published it.
        tokens: of the response so far.
        span: of the versions that produced them.
        seed: of the random stream that drew them, and draws what follows.
        sequence: of its message in the stream of progress.
        digest: of its payload.
    """

    attempt: int
    tokens: int
    span: VersionSpan
    seed: int
    sequence: int
    digest: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Siblings go to an engine; results of other attempts are not taken.

    `inherited` are those that go on from what an earlier attempt has generated; the others begin.
    """

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    engine: str
    min_version: int
    inherited: dict[str, Inherited] = field(default_factory=dict)
    kind: Literal["dispatched"] = "dispatched"


@dataclass(frozen=True, slots=True)
class Generated:
    """A payload has arrived. `sequence` is its message in the trajectory stream, `index` its place in it."""

    trajectory: str
    attempt: int
    span: VersionSpan
    tokens: int
    response_tokens: int
    digest: str
    sequence: int
    index: int
    kind: Literal["generated"] = "generated"


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A reward has arrived for the attempt that holds the sibling."""

    trajectory: str
    attempt: int
    reward: float
    digest: str
    kind: Literal["rewarded"] = "rewarded"


@dataclass(frozen=True, slots=True)
class SiblingReset:
    """A sibling is to be generated again, as `attempt`.

    `failure` counts against maxAttempts (a reward that raised, an engine that could not), a lost engine or a
    restart at new weights does not. `carries`: it may go on from what attempts before it have generated.
    """

    trajectory: str
    attempt: int
    reason: str
    failure: bool
    detail: str = ""
    carries: bool = False
    kind: Literal["reset"] = "reset"
