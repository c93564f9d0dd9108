"""Decodes the messages of a running job, and derives from them which part of a step it has reached."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    REWARD_BATCH,
    TRAINER_MESSAGE,
    VERSION_ANNOUNCED,
    EngineSignal,
    MicroBatch,
    RewardResult,
    StepProposed,
    VersionAnnounced,
)
from rljob_core.ports import Channel
from rljob_core.records import (
    FED,
    Dispatched,
    FedMicroBatch,
    Generated,
    MicroBatchAssigned,
    Record,
    Rewarded,
    StepCommitted,
    StepRestored,
    decode_batch,
)
from rljob_runtime.messaging.payload_index import SUMMARY_HEADER
from rljob_runtime.messaging.summaries import PayloadSummary, decode_summaries

Attempt = tuple[str, int]  # a trajectory, and which time it is generated
Part = tuple[int, int, int, int]  # step, micro-batch, the trainer's attempt, the writer epoch


@dataclass(frozen=True, slots=True)
class WeightsWritten:
    """A folder under the weights: hidden while it is written."""

    version: int
    hidden: bool


Sighting = (
    Record
    | PayloadSummary
    | RewardResult
    | MicroBatch
    | FedMicroBatch
    | WeightsWritten
    | StepProposed
    | VersionAnnounced
    | EngineSignal
)


def part_of(said: MicroBatchAssigned | MicroBatch | FedMicroBatch) -> Part:
    """Which micro-batch it is about."""
    return said.step, said.micro_batch, said.attempt, said.epoch


@dataclass(slots=True)
class Seen:
    """All that was seen so far; `take` adds to it."""

    dispatched: set[Attempt] = field(default_factory=set)
    generated: set[Attempt] = field(default_factory=set)
    rewarded: set[Attempt] = field(default_factory=set)
    assigned: dict[Part, bool] = field(default_factory=dict)  # whether it closes its step's batch
    sent: set[Part] = field(default_factory=set)
    proposed: int = 0
    committed: int = 0
    announced: int = 0
    engines: dict[str, int] = field(default_factory=dict)  # versions that they serve

    def take(self, said: Sighting) -> None:
        """One more."""
        match said:
            case Dispatched():
                self.dispatched |= set(zip(said.trajectories, said.attempts, strict=True))
            case Generated():
                self.generated.add((said.trajectory, said.attempt))
            case Rewarded():
                self.rewarded.add((said.trajectory, said.attempt))
            case MicroBatchAssigned():
                self.assigned[part_of(said)] = said.last
            case MicroBatch():
                self.sent.add(part_of(said))
            case StepProposed():
                self.proposed = max(self.proposed, said.proposal.version)
            case StepCommitted():
                self.committed = max(self.committed, said.version)
            case StepRestored():
                self.committed = max(self.committed, said.commit.version)
            case VersionAnnounced():
                self.announced = max(self.announced, said.version)
            case EngineSignal():
                self.engines[said.engine] = said.version

    @property
    def batch_closed(self) -> bool:
        """Whether the whole batch of the step that is not committed is assigned."""
        return any(last and part[0] == self.committed for part, last in self.assigned.items())


def sightings(channel: str, suffix: str, data: bytes, headers: dict[str, str]) -> list[Sighting]:
    """What a message says that matters here.

    Args:
        channel: a `Channel`, or `signals`.
    """
    match channel:
        case Channel.LEDGER if suffix in {"claim", "records"}:
            return list(decode_batch(data).records)
        case Channel.TRAJECTORIES if SUMMARY_HEADER in headers:
            return list(decode_summaries(headers[SUMMARY_HEADER]))
        case Channel.REWARDS if data:
            return list(REWARD_BATCH.validate_json(data).results)
        case Channel.TRAINING:
            work = TRAINER_MESSAGE.validate_json(data).work
            return [work] if isinstance(work, MicroBatch) else []
        case Channel.EVENTS:
            event = COORDINATOR_EVENT.validate_json(data)
            return [event] if isinstance(event, StepProposed) else []
        case Channel.VERSIONS:
            return [VERSION_ANNOUNCED.validate_json(data)]
        case "signals" if suffix.startswith(ENGINE_SIGNALS) and data:
            return [ENGINE_SIGNAL.validate_json(data)]
    return []


def fed(line: bytes) -> FedMicroBatch:
    """A line of the trainer's own log."""
    return FED.validate_json(line)
