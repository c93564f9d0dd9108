"""Records of staleness buffers and of the groups that hold their entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rljob_core.record_fields import MOST_SIBLINGS, OMITTED_IF_EMPTY, GroupName, Number, Real, TrajectoryName


@dataclass(frozen=True, slots=True)
class PipelineSet:
    """The `spec.pipeline` of the buffers from `step`'s on; buffers that are open keep their stamps.

    Attributes:
        step: whose buffer is the first under these settings.
        mode, max_staleness, inflight, max_attempts, max_resamples, window: as in `spec.pipeline`, the bound with its
            default.
    """

    step: Number
    mode: str
    max_staleness: Number
    inflight: str
    max_attempts: Number
    max_resamples: Number
    window: Real
    kind: Literal["pipeline"] = "pipeline"


@dataclass(frozen=True, slots=True)
class BufferOpened:
    """The staleness buffer of a step opens, stamped for good with its bound η and its mode."""

    step: Number
    max_staleness: Number
    mode: str
    capacity: Number
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True)
class GroupReserved:
    """The next prompt's group takes an entry of a buffer, before anything of it is generated."""

    group: GroupName
    prompt: Number
    siblings: Annotated[int, Field(ge=1, le=MOST_SIBLINGS)]
    step: Number
    min_version: Number
    kind: Literal["reserved"] = "reserved"


@dataclass(frozen=True, slots=True)
class GroupReady:
    """All siblings are rewarded: the entry is occupied. `base` is the oldest version of any of their tokens."""

    group: GroupName
    step: Number
    base: Number
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class GroupMoved:
    """A group moves to an entry of another buffer, whose stamp it satisfies.

    `displaced`, if not empty, is the group whose entry it takes; that one moves to the entry left in `source`, whose
    stamp it satisfies.
    """

    group: GroupName
    source: Number
    target: Number
    displaced: GroupName | Literal[""] = ""
    kind: Literal["moved"] = "moved"


@dataclass(frozen=True, slots=True)
class GroupAborted:
    """A group ends untrained, and its entry is free.

    Attributes:
        causes: reasons of single siblings, by id, where they differ from the group's.
        detail: for people: which prompt it was and what happened to it, in the words of the role that reported it.
    """

    group: GroupName
    reason: str
    causes: dict[TrajectoryName, str] = field(default_factory=dict)
    detail: Annotated[str, OMITTED_IF_EMPTY] = ""
    kind: Literal["aborted"] = "aborted"
