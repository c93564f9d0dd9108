"""The simulated trainer gang: it trains the micro-batches that it is sent, one after the other, and proposes steps."""

from __future__ import annotations

from collections.abc import Callable

from rljob_core.actions import Observation
from rljob_core.messages import (
    CheckpointWritten,
    Finish,
    Hello,
    MicroBatch,
    Resume,
    StepProposed,
    StepStats,
    TrainerReady,
    TrainerWork,
)
from rljob_core.records import StepCommitted
from rljob_sim.clock import VirtualClock
from rljob_sim.scenario import TrainerProfile
from rljob_sim.timeline import PUBLISHING, TRAINER, TRAINING, Timeline


class SimulatedTrainer:
    """A gang that never fails.

    Args:
        observe: called with what the coordinator reads of it.
        timeline: which its phases are written to.

    Attributes:
        busy: seconds in which it trained.
        outcome: of the job; empty before its end.
    """

    ATTEMPT = 1

    def __init__(
        self,
        clock: VirtualClock,
        profile: TrainerProfile,
        observe: Callable[[Observation], None],
        timeline: Timeline | None = None,
    ) -> None:
        self.busy, self.outcome = 0.0, ""
        self._clock, self._profile, self._observe = clock, profile, observe
        self._timeline = timeline
        self._epoch = self._version = self._resumed = 0
        self._manifest = ""
        self._fed: list[tuple[str, ...]] = []
        self._spent, self._tokens = 0.0, 0  # on the step so far
        self._free = 0.0

    def start(self) -> None:
        """Be ready."""
        self._observe(TrainerReady(self.ATTEMPT, 0, None))

    def receive(self, message: TrainerWork) -> None:
        """Do what the coordinator says."""
        match message:
            case Hello() if message.epoch > self._epoch:
                self._epoch, self._resumed = message.epoch, 0
                self._observe(TrainerReady(self.ATTEMPT, self._epoch, self._version))
            case Resume() if message.number > self._resumed:
                self._version, self._manifest = message.version, message.manifest
                self._fed, self._resumed = [], message.number
                if message.last and message.version != message.checkpoint_version:
                    self._observe(CheckpointWritten(self.ATTEMPT, message.version, message.manifest, "k"))
            case MicroBatch() if (message.step, message.micro_batch) == (self._version, len(self._fed)):
                self._train(message)
            case Finish():
                self.outcome = "Succeeded" if message.failure is None else "Failed"
            case _:
                pass

    def _train(self, message: MicroBatch) -> None:
        profile, tokens = self._profile, sum(item.tokens for item in message.items)
        seconds = tokens * profile.seconds_per_token + len(message.items) * profile.seconds_per_trajectory
        if message.last:
            seconds += profile.step_seconds
        self._free = max(self._free, self._clock.now) + seconds
        self.busy += seconds
        if (timeline := self._timeline) is not None:
            timeline.add(TRAINER, TRAINING, self._free - seconds, seconds, step=message.step)
            if message.last:
                timeline.add(TRAINER, PUBLISHING, self._free, profile.publish_seconds, step=message.step)
        self._spent += seconds
        self._tokens += tokens
        self._fed.append(tuple(item.trajectory for item in message.items))
        if message.last:
            fed = tuple(self._fed)
            stats = StepStats(
                tokens=self._tokens,
                seconds_training=self._spent,
                seconds_publishing=profile.publish_seconds,
            )
            self._spent, self._tokens = 0.0, 0
            self._clock.at(self._free + profile.publish_seconds, lambda: self._propose(message, fed, stats))

    def _propose(self, message: MicroBatch, fed: tuple[tuple[str, ...], ...], stats: StepStats) -> None:
        version = message.step + 1
        digest = f"m{version}"
        proposal = StepCommitted(
            version=version,
            parent=self._manifest,
            attempt=message.attempt,
            epoch=message.epoch,
            micro_batches=fed,
            max_staleness=message.max_staleness,
            random_state="",
            manifest=digest,
            key=f"v{version}",
        )
        self._version, self._manifest, self._fed = version, digest, []
        self._observe(StepProposed(proposal, stats))
