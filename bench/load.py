"""Generates the observations of a whole job as fast as a planner decides, to measure the decisions alone."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from rljob_core.actions import (
    Observation,
    PayloadSeen,
    RewardsSeen,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    StoresRead,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.messages import (
    CheckpointWritten,
    EngineSignal,
    Finish,
    Generate,
    MicroBatch,
    Resume,
    RewardResult,
    StepProposed,
    StepStats,
    TrainerReady,
    TrainerWork,
)
from rljob_core.planner import Decision, Planner
from rljob_core.records import RecordBatch, StepCommitted
from rljob_core.spec import RLJobSpec
from rljob_core.trajectory import VersionSpan

AT_ONCE, PER_MESSAGE = 256, 8
"""Trajectories that end between two decisions, and those of them that one message reports."""


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The shape of a job: prompts in a step, samples of a prompt, engines, slots of an engine, steps, η."""

    prompts: int
    group: int
    engines: int
    slots: int
    steps: int
    bound: int = 2

    @property
    def trajectories(self) -> int:
        """Trajectories that the whole job trains on."""
        return self.prompts * self.group * self.steps

    @property
    def open(self) -> int:
        """Planned and not ended at once, at most."""
        return self.prompts * self.group * min(self.bound + 1, self.steps)


def config_of(shape: LoadShape, **more: Any) -> JobConfig:
    """A job of that shape."""
    spec: dict[str, Any] = {
        "steps": shape.steps,
        "model": {"uri": "/model"},
        "data": {"dataset": "chain_sum", "promptsPerStep": shape.prompts, "groupSize": shape.group},
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": shape.bound},
        "rollout": {"pools": [{"name": "a"}], "engine": {"name": "Emulated"}},
        "trainer": {"backend": "Emulated", "microBatchTokens": 1 << 16, "checkpoint": {"everySteps": 10_000}},
    }
    uris = {"weights_uri": "/w", "checkpoint_uri": "/c", "trainer_log_uri": "/t"} | more
    return JobConfig(namespace="bench", job="bench", uid="u1", spec=RLJobSpec.model_validate(spec), **uris)


class MadeUpTrainer:
    """Trains in no time: a step is proposed when its last micro-batch comes."""

    def __init__(self) -> None:
        self._manifest = ""
        self._fed: list[tuple[str, ...]] = []

    def take(self, message: TrainerWork) -> StepProposed | CheckpointWritten | Finish | None:
        """What it says to a message."""
        match message:
            case Resume():
                self._manifest, self._fed = message.manifest, []
                if message.last:
                    return CheckpointWritten(message.attempt, message.version, message.manifest, "k")
            case MicroBatch():
                self._fed.append(tuple(item.trajectory for item in message.items))
                if message.last:
                    return self._propose(message)
            case Finish():
                return message
        return None

    def _propose(self, message: MicroBatch) -> StepProposed:
        key = f"v{message.step + 1:08d}"
        parent, self._manifest = self._manifest, key
        fed, self._fed = tuple(self._fed), []
        proposal = StepCommitted(
            version=message.step + 1,
            parent=parent,
            attempt=message.attempt,
            epoch=message.epoch,
            micro_batches=fed,
            max_staleness=message.max_staleness,
            random_state="",
            manifest=key,
            key=key,
        )
        return StepProposed(proposal, StepStats())


class Load:
    """A planner, and the roles that answer it at once.

    Args:
        keep: whether the records that the planner writes to the ledger are kept in `batches`.

    Attributes:
        seconds: time spent in `Planner.decide`.
    """

    def __init__(self, shape: LoadShape, *, seed: int, keep: bool = False) -> None:
        self.seconds = 0.0
        self.batches: list[RecordBatch] = []
        self._keep = keep
        self._shape = shape
        self._chance = random.Random(seed)
        self._planner = Planner(config_of(shape))
        self._trainer = MadeUpTrainer()
        self._generating: list[Generate] = []
        self._sequence = 0
        self._version = 0
        self._finished = False

    def run(self) -> None:
        """Decide until the job has ended."""
        self._take(self._planner.start("bench", 0.0))
        signals = [
            SignalSeen(f"e{n}.x", EngineSignal(f"e{n}.x", "a", 0, 0, 0, self._shape.slots, 0, 0, 0))
            for n in range(self._shape.engines)
        ]
        heard: list[Observation] = [StoresRead(()), *signals, TrainerReady(1, self._planner.epoch, None)]
        while not self._finished:
            begun = time.perf_counter()
            decision = self._planner.decide(heard, 0.0)
            self.seconds += time.perf_counter() - begun
            heard = self._take(decision) + self._generated()
            if not heard and not self._finished:
                raise RuntimeError(f"the planner makes no progress at version {self._planner.state.version}")

    def _take(self, decision: Decision) -> list[Observation]:
        if self._keep and decision.records:
            self.batches.append(RecordBatch(self._planner.state.writer, decision.records))
        heard: list[Observation] = []
        for action in decision.actions:
            if isinstance(action, SendToEngine):
                self._generating += [item for item in action.items if isinstance(item, Generate)]
            elif isinstance(action, SendToTrainer):
                answer = self._trainer.take(action.message)
                if isinstance(answer, Finish):
                    self._finished = True
                elif answer is not None:
                    heard.append(answer)
                    if isinstance(answer, StepProposed):
                        self._version = answer.proposal.version
        return heard

    def _generated(self) -> list[Observation]:
        """Observations of some of the open trajectories, in random order, which end with their rewards."""
        self._chance.shuffle(self._generating)
        ended, self._generating = self._generating[:AT_ONCE], self._generating[AT_ONCE:]
        heard: list[Observation] = []
        for first in range(0, len(ended), PER_MESSAGE):
            part = ended[first : first + PER_MESSAGE]
            self._sequence += 1
            span = [VersionSpan(w.min_version, max(w.min_version, self._version)) for w in part]
            summaries = [
                Summary(w.trajectory, w.attempt, s, 100, 90, w.trajectory)
                for w, s in zip(part, span, strict=True)
            ]
            results = [
                RewardResult(w.trajectory, w.attempt, w.trajectory, self._chance.random(), {}, "digest")
                for w in part
            ]
            heard += [
                PayloadSeen(self._sequence, tuple(summaries)),
                RewardsSeen(self._sequence, tuple(results)),
            ]
        return heard
