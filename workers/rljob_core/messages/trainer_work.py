"""From the coordinator to a trainer attempt: start, train on micro-batches, stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.failures import Failure
from rljob_core.record_fields import OMITTED_IF_NONE
from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class Hello:
    """A coordinator with this writer epoch has taken over: answer with `TrainerReady`."""

    epoch: int
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints are kept besides the newest ones (`spec.trainer.checkpoint.keepBest`).

    Attributes:
        best: of the versions that are saved, the one with the best held-out reward so far; 0 if none has a score.
        evaluated: the newest version that was evaluated: later ones may turn out to be better.
        every: steps between evaluations.
    """

    best: int
    evaluated: int
    every: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Start step `version` from the weights at `key` and the newest optimizer state, dropping accumulated gradients.

    Attributes:
        number: counts the `Resume`s of this coordinator to this attempt. Each micro-batch names the `Resume` that it
            follows, so that none that arrives late or twice is trained on.
        key: key of the weights in the weight store; None for version 0, the initial model.
        manifest: digest of the weights' manifest.
        checkpoint: key of the optimizer state, saved after `checkpoint_version`; None for a fresh one.
        last: no step follows: save a checkpoint of this version, unless there is one.
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
    retention: Annotated[Retention | None, OMITTED_IF_NONE] = None
    kind: Literal["resume"] = "resume"


@dataclass(frozen=True, slots=True)
class TrainingItem:
    """One trajectory of a micro-batch; its payload is at `index` in message `sequence` of the trajectory stream."""

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
    """Whole groups to feed to forward and backward; `last` completes the step."""

    step: int
    micro_batch: int
    attempt: int
    epoch: int
    resume: int
    max_staleness: int
    items: tuple[TrainingItem, ...]
    last: bool
    retention: Annotated[Retention | None, OMITTED_IF_NONE] = None
    kind: Literal["micro_batch"] = "micro_batch"


@dataclass(frozen=True, slots=True)
class Fence:
    """A newer attempt has taken over: every attempt before `attempt` must stop."""

    attempt: int
    epoch: int
    kind: Literal["fence"] = "fence"


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over; it has succeeded if there is no failure."""

    epoch: int
    failure: Annotated[Failure | None, OMITTED_IF_NONE] = None
    retention: Annotated[Retention | None, OMITTED_IF_NONE] = None
    kind: Literal["finish"] = "finish"


TrainerWork = Hello | Resume | MicroBatch | Fence | Finish


@dataclass(frozen=True, slots=True)
class TrainerMessage:
    """One message of an attempt's queue.

    Attributes:
        ledger: the ledger's chain digest when it was sent: the ledger holds the decision that led to it.
    """

    ledger: str
    work: Annotated[TrainerWork, Field(discriminator="kind")]


TRAINER_MESSAGE: TypeAdapter[TrainerMessage] = TypeAdapter(TrainerMessage)
