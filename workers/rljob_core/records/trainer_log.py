"""The trainer's own log of what it fed to backward: a source beside the ledger, so that an audit can compare both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from rljob_core.record_fields import Number, Real, Score, TrajectoryName
from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class FedTrajectory:
    """What the trainer read in a payload's header, and was sent with it, before it fed the payload to backward.

    Attributes:
        prompt: index of the prompt, by the payload.
        reward, advantage: as the coordinator sent them.
    """

    trajectory: TrajectoryName
    attempt: Number
    digest: str
    span: VersionSpan
    prompt: Number
    reward: Score
    advantage: Real


@dataclass(frozen=True, slots=True)
class FedMicroBatch:
    """One line of the trainer's own log (`<trainer_log_uri>/attempt-<a>.jsonl`), written before backward.

    Only the trainer writes it and only the audit reads it, so it cannot repeat an error of the coordinator's.
    """

    step: Number
    micro_batch: Number
    attempt: Number
    epoch: Number
    items: tuple[FedTrajectory, ...]
    version: Literal[1] = 1


FED: TypeAdapter[FedMicroBatch] = TypeAdapter(FedMicroBatch)
