"""Records of single siblings: dispatched, generated, rewarded, reset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from rljob_core.record_fields import OMITTED_IF_EMPTY, Number, Score, TrajectoryName
from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class Inherited:
    """The progress of an earlier attempt from which an attempt resumes.

    Attributes:
        attempt: the attempt that published it.
        tokens: length of the response so far.
        span: versions that produced these tokens.
        seed: seed of the random stream that drew them, and draws the following ones.
        digest: digest of its payload.
    """

    attempt: Number
    tokens: Number
    span: VersionSpan
    seed: int
    digest: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Siblings are sent to an engine; from here on, results of other attempts do not count.

    Attributes:
        min_version: oldest weights that may produce their next token.
        inherited: progress from which they resume, by trajectory id; the others start from their prompts.
        site: where the engine is; empty if it is at the hub.
    """

    trajectories: tuple[TrajectoryName, ...]
    attempts: tuple[Number, ...]
    engine: str
    min_version: Number
    inherited: dict[TrajectoryName, Inherited] = field(default_factory=dict)
    site: Annotated[str, OMITTED_IF_EMPTY] = ""
    kind: Literal["dispatched"] = "dispatched"

    def __post_init__(self) -> None:
        if len(self.trajectories) != len(self.attempts):
            raise ValueError("has not one attempt for each trajectory")


@dataclass(frozen=True, slots=True)
class Generated:
    """A sibling's payload is stored: message `sequence` of the trajectory stream, place `index` in it."""

    trajectory: TrajectoryName
    attempt: Number
    span: VersionSpan
    tokens: Number
    response_tokens: Number
    digest: str
    sequence: Number
    index: Number
    kind: Literal["generated"] = "generated"


@dataclass(frozen=True, slots=True)
class Rewarded:
    """The attempt that holds the sibling has its reward."""

    trajectory: TrajectoryName
    attempt: Number
    reward: Score
    digest: str
    kind: Literal["rewarded"] = "rewarded"


@dataclass(frozen=True, slots=True)
class SiblingReset:
    """A sibling is to be generated again, as `attempt`.

    Attributes:
        failure: whether this counts against `maxAttempts`. A reward function that raised does; a lost engine or a
            restart at new weights does not.
        carries: whether the new attempt may inherit the progress of earlier ones.
        died: whether the engine that was generating it has died; an engine that drained has not.
    """

    trajectory: TrajectoryName
    attempt: Number
    reason: str
    failure: bool
    detail: str = ""
    carries: bool = False
    died: Annotated[bool, OMITTED_IF_EMPTY] = False
    kind: Literal["reset"] = "reset"
