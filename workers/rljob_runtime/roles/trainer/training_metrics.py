"""Records what a trainer does as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rljob_core.messages import MicroBatch, StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.catalogue import TrainerMetrics as Metrics
from rljob_runtime.telemetry.recorder import Recorder


class TrainingMetrics:
    """The metrics of one trainer.

    Args:
        recorder: takes them; None if nobody reads them.
        attempt: of the trainer.
    """

    def __init__(self, recorder: Recorder | None, *, attempt: int) -> None:
        self._recorder = Recorder(CATALOGUE["trainer"]) if recorder is None else recorder
        self._recorder.set(Metrics.ATTEMPT, attempt)

    def enter(self, state: str) -> None:
        """From now on the trainer is in this state."""
        self._recorder.enter(Metrics.SECONDS, state)

    def during(self, state: str) -> AbstractContextManager[None]:
        """The trainer is in this state during the block."""
        return self._recorder.during(Metrics.SECONDS, state)

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """A checkpoint is saved during the block."""
        with self.during("checkpointing"), self._recorder.timed(Metrics.CHECKPOINT_SECONDS):
            yield

    def missing(self, payloads: int) -> None:
        """Payloads are not stored any more."""
        self._recorder.add(Metrics.MISSING, payloads)

    def trained(self, work: MicroBatch, samples: Sequence[TrainingSample]) -> None:
        """A micro-batch was trained on."""
        self._recorder.add(Metrics.MICRO_BATCHES)
        self._recorder.add(Metrics.TRAJECTORIES, len(samples))
        for sample in samples:
            self._recorder.observe(Metrics.STALENESS, work.step - sample.trajectory.span.min)

    def stepped(self, version: int, stats: StepStats) -> None:
        """A step is finished, and its weights are durable."""
        recorder = self._recorder
        recorder.add(Metrics.STEPS)
        recorder.add(Metrics.TOKENS, stats.tokens)
        recorder.observe(Metrics.STEP_SECONDS, stats.seconds_training)
        recorder.observe(Metrics.PUBLISH_SECONDS, stats.seconds_publishing)
        for metric, value in (
            (Metrics.VERSION, version),
            (Metrics.LOSS, stats.loss),
            (Metrics.KL, stats.kl),
            (Metrics.CLIP_RATIO, stats.clip_fraction),
            (Metrics.IMPORTANCE_MEAN, stats.importance_mean),
            (Metrics.GRAD_NORM, stats.grad_norm),
            (Metrics.LEARNING_RATE, stats.learning_rate),
        ):
            recorder.set(metric, value)
