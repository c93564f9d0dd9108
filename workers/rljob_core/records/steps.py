"""Records of training: the gang in charge, its micro-batches, and the versions that it makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rljob_core.failures import Failure
from rljob_core.held_out import HeldOutScore
from rljob_core.record_fields import (
    OMITTED_IF_EMPTY,
    OMITTED_IF_NONE,
    GroupName,
    Number,
    Real,
    Score,
    TrajectoryName,
)
from rljob_core.trajectory import group_of


@dataclass(frozen=True, slots=True)
class TrainerAttempt:
    """A trainer gang (or the same gang under a new coordinator) is in charge and starts from `version`.

    Groups that were in training and not committed are ready again.
    """

    attempt: Number
    epoch: Number
    version: Number
    kind: Literal["attempt"] = "attempt"


@dataclass(frozen=True, slots=True)
class MicroBatchAssigned:
    """Groups are assigned to the trainer as one micro-batch of a step; `last` completes the step's batch."""

    step: Number
    micro_batch: Number
    attempt: Number
    epoch: Number
    groups: tuple[GroupName, ...]
    last: bool
    kind: Literal["training"] = "training"


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step is committed: this record alone makes the version. The version's manifest embeds the same record.

    Attributes:
        version: the policy version that the step made; the step is `version - 1`.
        parent: digest of the manifest of the weights that the step started from.
        attempt, epoch: the trainer's fence.
        micro_batches: trajectory ids fed to backward, in order, per micro-batch.
        max_staleness: the stamp of the step's buffer.
        random_state: digest of the trainer's random state after the step.
        manifest: digest of the version's manifest (empty in the copy that the manifest embeds).
        key: the version's key in the weight store.
        ledger: the ledger's chain digest when the step's last micro-batch was sent, so that the manifest, which embeds
            this record, testifies to all that the ledger held then.
    """

    version: Number
    parent: str
    attempt: Number
    epoch: Number
    micro_batches: tuple[tuple[TrajectoryName, ...], ...]
    max_staleness: Number
    random_state: str
    manifest: str
    key: str
    ledger: Annotated[str, OMITTED_IF_EMPTY] = ""
    kind: Literal["committed"] = "committed"

    @property
    def siblings(self) -> Counter[str]:
        """The groups that the step consumed, and how many trajectories of each."""
        return Counter(group_of(trajectory) for part in self.micro_batches for trajectory in part)


@dataclass(frozen=True, slots=True)
class StepRestored:
    """A commit is restored that the ledger has lost, or of which it may have lost the records that led to it.

    Attributes:
        commit: the record that the manifest embeds.
        moved: groups that the ledger still has in the step's buffer although the step consumed others, and the steps
            whose buffers they move to.
        dropped: such groups for which no buffer has room; they end as `LedgerLost`.
    """

    commit: StepCommitted
    moved: dict[GroupName, Number]
    dropped: tuple[GroupName, ...]
    kind: Literal["restored"] = "restored"


@dataclass(frozen=True, slots=True)
class VersionsRevoked:
    """The user goes back to `version`: later versions, and the trajectories that they consumed, do not count.

    Open groups end as `VersionRevoked`. The job continues from here even if it had ended; if `version` is the newest
    one, that is all that the record does.

    Attributes:
        version: the newest version that counts from here on, with its `key` and the digest of its `manifest`.
        checkpoint, checkpoint_version: the optimizer state to continue with; None for a fresh one.
        trajectories: how many the revoked steps had consumed.
    """

    version: Number
    key: str | None
    manifest: str
    checkpoint: str | None
    checkpoint_version: Number | None
    trajectories: Number
    kind: Literal["revoked"] = "revoked"


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """Optimizer and random state after `version` are durable in folder `key` under the checkpoint URI."""

    version: Number
    attempt: Number
    key: str
    kind: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Scores on the held-out prompts under `version`.

    Attributes:
        sampled, greedy, samples, answers, failed, error, sampled_ci95, greedy_ci95, pass_at: of the first held-out
            set (`HeldOutScore`).
        sets: the scores on the other sets, by name, in the spec's order.
        newest, mixed: how many answers hold tokens of later versions, and the newest of these; both 0 if none does.
        given_up: prompts whose answers killed their engines: they count as 0, and are not asked again.
    """

    version: Number
    sampled: Score | None
    greedy: Score | None
    samples: Number
    answers: Number
    failed: Annotated[Number, OMITTED_IF_EMPTY] = 0
    error: Annotated[str, OMITTED_IF_EMPTY] = ""
    given_up: Annotated[tuple[Number, ...], OMITTED_IF_EMPTY] = ()
    newest: Annotated[Number, OMITTED_IF_EMPTY] = 0
    mixed: Annotated[Number, OMITTED_IF_EMPTY] = 0
    sampled_ci95: Annotated[Real | None, OMITTED_IF_NONE] = None
    greedy_ci95: Annotated[Real | None, OMITTED_IF_NONE] = None
    pass_at: Annotated[dict[Number, Real], OMITTED_IF_EMPTY] = field(default_factory=dict)
    sets: Annotated[dict[str, HeldOutScore], OMITTED_IF_EMPTY] = field(default_factory=dict)
    kind: Literal["evaluated"] = "evaluated"

    @property
    def scores(self) -> tuple[HeldOutScore, ...]:
        """The scores on all sets, in the spec's order."""
        first = HeldOutScore(
            self.sampled, self.greedy, self.samples, self.answers, self.failed, self.error,
            self.sampled_ci95, self.greedy_ci95, self.pass_at,
        )  # fmt: skip
        return (first, *self.sets.values())


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The job has ended; it has succeeded if there is no failure. Only `VersionsRevoked` opens it again."""

    failure: Annotated[Failure | None, OMITTED_IF_NONE] = None
    kind: Literal["finished"] = "finished"

    @property
    def outcome(self) -> Literal["Succeeded", "Failed"]:
        """The end in one word."""
        return "Succeeded" if self.failure is None else "Failed"
