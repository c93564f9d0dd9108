"""From engines and the trainer to the coordinator: what has ended, is ready, is missing, or has failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.failures import Failure
from rljob_core.messages.metrics import StepStats
from rljob_core.records import StepCommitted
from rljob_core.words import exit_in_words


@dataclass(frozen=True, slots=True)
class GenerationEnded:
    """An engine no longer generates a trajectory: it failed, or the engine hands it back.

    An engine hands trajectories back when it drains, restarts them at new weights, or cannot read what they inherit.

    Attributes:
        reason: one CamelCase word; `detail` has the rest.
        failure: whether this counts against `maxAttempts`.
    """

    engine: str
    trajectory: str
    attempt: int
    reason: str
    failure: bool
    detail: str = ""
    kind: Literal["generation_ended"] = "generation_ended"


@dataclass(frozen=True, slots=True)
class EngineGone:
    """An engine has drained and stops; it has stored the progress of its unfinished trajectories.

    Its payloads have ended with a message in the trajectory stream (`EngineDrained`), which it has stored before.
    """

    engine: str
    kind: Literal["engine_gone"] = "engine_gone"


@dataclass(frozen=True, slots=True)
class EngineDied:
    """An engine's process has ended by itself: what it held is generated again elsewhere, without waiting for a lease.

    The process that watches the engine sends this. It never does for an engine that has drained.

    Attributes:
        engine: instance name, as in the engine's signals; another instance of the pod is another engine.
        exit_code: as a shell gives it: 128 + n if signal n ended the process.
        message: the engine's last words; empty if there are none.
        beginning: the group that it was just beginning, of those that have outlived an engine; empty for none, or if it
            has not said so.
        trajectories: those that it was generating shortly before, as far as it has said so.
        tokens: about how many tokens of the response each of these had, what it was resumed from included.
    """

    engine: str
    exit_code: int
    message: str = ""
    beginning: str = ""
    trajectories: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    kind: Literal["engine_died"] = "engine_died"

    @property
    def cause(self) -> str:
        """`exit code 139 (SIGSEGV): last words`."""
        code = exit_in_words(self.exit_code)
        return f"{code}: {self.message}" if self.message else code

    @property
    def reached(self) -> dict[str, int]:
        """The tokens by trajectory."""
        return dict(zip(self.trajectories, self.tokens, strict=False))


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """A trainer gang asks for work, and repeats its state for as long as it receives nothing.

    Attributes:
        attempt: the gang's number, given by the operator.
        epoch: the writer epoch that it follows; 0 before it has seen any.
        version: version of the weights in memory; None before any were loaded.
        proposal: a step that it has finished, durable in the weight store and perhaps not committed.
        resume: number of the newest `Resume` that it has taken from that epoch; 0 for none.
        fed: micro-batches that it has taken of the step that follows `version`.
    """

    attempt: int
    epoch: int
    version: int | None
    proposal: StepCommitted | None = None
    resume: int = 0
    fed: int = 0
    kind: Literal["trainer_ready"] = "trainer_ready"


@dataclass(frozen=True, slots=True)
class StepProposed:
    """A step is finished, and its weights and manifest are durable: commit it."""

    proposal: StepCommitted
    stats: StepStats
    kind: Literal["step_proposed"] = "step_proposed"


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """Optimizer state is durable, saved after the step that made the version with this manifest."""

    attempt: int
    version: int
    manifest: str
    key: str
    kind: Literal["checkpoint_written"] = "checkpoint_written"


@dataclass(frozen=True, slots=True)
class OptimizerReset:
    """The trainer continues with another optimizer state than the one that the newest checkpoint had; for people.

    Attributes:
        version: of the weights from which it continues.
        checkpoint: the newest checkpoint, by the ledger, which is gone; empty if the ledger has none.
        used: the version after which the state was saved that it continues with; None for a fresh one.
    """

    attempt: int
    version: int
    checkpoint: str
    used: int | None
    kind: Literal["optimizer_reset"] = "optimizer_reset"

    @property
    def message(self) -> str:
        """What it means, as one sentence."""
        why = f"the checkpoint {self.checkpoint} is gone" if self.checkpoint else "no checkpoint was saved"
        state = "fresh moments" if self.used is None else f"the moments of version {self.used}"
        return f"{why}: the optimizer continues from version {self.version} with {state}"


@dataclass(frozen=True, slots=True)
class SamplesLost:
    """A reward worker cannot keep samples: their store is full, slow or gone. For people.

    It repeats this every minute while it cannot.

    Attributes:
        worker: its name.
        lost: samples that it has dropped since it started.
        message: what the store answers; empty once samples are stored again.
    """

    worker: str
    lost: int
    message: str
    kind: Literal["samples_lost"] = "samples_lost"

    @property
    def sentence(self) -> str:
        """The event as a sentence for people."""
        why = self.message[:300]  # each line of the metrics repeats it
        return f"{self.worker} cannot store samples ({self.lost} are lost), training continues: {why}"


@dataclass(frozen=True, slots=True)
class RoleFailed:
    """A role cannot continue: the job fails.

    It counts for the coordinator that is in charge when it is sent. If it holds under a later one, the role says so
    again.

    Attributes:
        attempt: the trainer's attempt; 0 for other roles.
    """

    role: str
    failure: Failure
    attempt: int = 0
    kind: Literal["role_failed"] = "role_failed"


@dataclass(frozen=True, slots=True)
class PayloadMissing:
    """The trainer could not read payloads of a micro-batch, or they do not match their digests."""

    attempt: int
    epoch: int
    step: int
    trajectories: tuple[str, ...]
    kind: Literal["payload_missing"] = "payload_missing"


CoordinatorEvent = (
    GenerationEnded
    | EngineGone
    | EngineDied
    | TrainerReady
    | StepProposed
    | CheckpointWritten
    | PayloadMissing
    | OptimizerReset
    | SamplesLost
    | RoleFailed
)
COORDINATOR_EVENT: TypeAdapter[CoordinatorEvent] = TypeAdapter(
    Annotated[CoordinatorEvent, Field(discriminator="kind")]
)
