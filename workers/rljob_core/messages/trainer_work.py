"""From the coordinator to a trainer attempt: start, train on micro-batches, stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class Hello:
    """A coordinator with this writer epoch is in charge: answer with `TrainerReady`."""

    epoch: int
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Resume:
    """Start step `version` from the weights at `key` (and the newest optimizer state), dropping what was accumulated.

    `key` is None for version 0: the initial model. `number` counts what this coordinator has sent of these to this
    attempt; micro-batches name the Resume that they follow, so that nothing that comes late or twice is trained on.
    `last`: no step follows; save a checkpoint of this version, unless there is one.
    """

    attempt: int
    epoch: int
    number: int
    version: int
    key: str | None
    manifest: str
    checkpoint: str | None
    checkpoint_version: int | None
    last: bool = False
    kind: Literal["resume"] = "resume"


@dataclass(frozen=True, slots=True)
class TrainingItem:
    """One trajectory of a micro-batch, and where its payload is."""

    trajectory: str
    attempt: int
    group: str
    reward: float
    advantage: float
    span: VersionSpan
    tokens: int
    digest: str
    sequence: int
    index: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Groups to feed to forward and backward, whole."""

    step: int
    micro_batch: int
    attempt: int
    epoch: int
    resume: int
    max_staleness: int
    items: tuple[TrainingItem, ...]
    last: bool
    kind: Literal["micro_batch"] = "micro_batch"


@dataclass(frozen=True, slots=True)
class Fence:
    """Attempts up to this one are over: stop."""

    attempt: int
    epoch: int
    kind: Literal["fence"] = "fence"


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over, well or not."""

    epoch: int
    outcome: str
    message: str = ""
    kind: Literal["finish"] = "finish"


TrainerWork = Hello | Resume | MicroBatch | Fence | Finish
TRAINER_WORK: TypeAdapter[TrainerWork] = TypeAdapter(Annotated[TrainerWork, Field(discriminator="kind")])
