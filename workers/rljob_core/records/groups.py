"""Records of staleness buffers and of the groups that hold their entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class PipelineSet:
    """What binds the buffers that open from here on, `step`'s first; those that are open keep their stamps."""

    step: int
    mode: str
    max_staleness: int
    inflight: str
    max_attempts: int
    max_resamples: int
    kind: Literal["pipeline"] = "pipeline"


@dataclass(frozen=True, slots=True)
class BufferOpened:
    """The staleness buffer of a step, with the η and mode that bind it for good."""

    step: int
    max_staleness: int
    mode: str
    capacity: int
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True)
class GroupReserved:
    """A group is planned from the data cursor and takes an entry of a buffer, before anything is generated."""

    group: str
    prompt: int
    siblings: int
    step: int
    min_version: int
    kind: Literal["reserved"] = "reserved"


@dataclass(frozen=True, slots=True)
class GroupReady:
    """All siblings are rewarded: the entry is occupied. `base` is the minimum version over them."""

    group: str
    step: int
    base: int
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class GroupMoved:
    """A group takes an entry of another buffer, whose stamp it satisfies.

    `displaced`, if any, takes the place that it leaves in `source`, whose stamp it satisfies.
    """

    group: str
    source: int
    target: int
    displaced: str = ""
    kind: Literal["moved"] = "moved"


@dataclass(frozen=True, slots=True)
class GroupAborted:
    """A group ends without being trained; its entry is free. `causes` names siblings with reasons of their own."""

    group: str
    reason: str
    causes: dict[str, str] = field(default_factory=dict)
    kind: Literal["aborted"] = "aborted"
