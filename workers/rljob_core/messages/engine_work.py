"""From the coordinator to an engine: generate these trajectories, stop those, give others back; to all
engines: the newest version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.record_fields import Number
from rljob_core.records import Inherited

Sample = Literal["sampled", "greedy"]
"""How tokens are chosen: drawn as `spec.rollout.sampling` says, or always the likeliest one."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate one trajectory.

    Attributes:
        prompt: index of the prompt in the job's data order.
        min_version: an engine whose weights are older waits for newer ones before it starts.
        seed: seed of this attempt's random draws.
        inherited: progress from which it resumes; an engine that cannot read it gives the trajectory back.
        survivor: whether an engine died that was generating a sibling: it may be what killed that one.
    """

    trajectory: str
    attempt: int
    prompt: int
    min_version: int
    sample: Sample
    seed: int
    inherited: Inherited | None = None
    survivor: bool = False
    kind: Literal["generate"] = "generate"


def work_suffix(engine: str, *, site: str) -> str:
    """The suffix of an engine's work queue: the server of a site takes what begins with `site.<its name>.`.

    Args:
        site: where the engine is; empty for the hub.
    """
    return f"site.{site}.engine.{engine}" if site else f"engine.{engine}"


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop these attempts, or do not begin them; `attempts` holds one number for each of `trajectories`."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    kind: Literal["cancel"] = "cancel"


RELEASED = "Released"
"""Why an engine gives back what it was asked to release."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give these attempts back with their progress: other engines continue them.

    Attributes:
        attempts: as in `Cancel`.
        unless_begun: only those of which no token is generated yet.
    """

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    unless_begun: bool = False
    kind: Literal["release"] = "release"


EngineWork = Generate | Cancel | Release


@dataclass(frozen=True, slots=True)
class EngineWorkBatch:
    """One message of an engine's queue.

    Attributes:
        epoch: the coordinator's writer epoch.
        items: in the order in which they were decided.
        texts: the rendered prompts of what is to be generated, each once, by group; the rollout worker tokenizes them.
    """

    epoch: int
    items: tuple[Annotated[EngineWork, Field(discriminator="kind")], ...]
    texts: dict[str, str] = field(default_factory=dict)


ENGINE_WORK: TypeAdapter[EngineWorkBatch] = TypeAdapter(EngineWorkBatch)


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """A committed version: engines swap to it, unless they know one of a newer epoch, or a newer one of this epoch.

    It may be older than an engine's version, if a newer coordinator found later versions lost or revoked by the user.

    Attributes:
        epoch: writer epoch of the coordinator that announces it.
        key: key of the weights in the weight store; None for version 0, the initial model.
        manifest: digest of the weights' manifest.
        final: whether no version follows.
    """

    epoch: Number
    version: Number
    key: str | None
    manifest: str
    final: bool = False
    kind: Literal["version"] = "version"


VERSION_ANNOUNCED: TypeAdapter[VersionAnnounced] = TypeAdapter(VersionAnnounced)
