"""The coordinator's decisions: `Planner.decide(observations, now) -> Decision(records, actions)`, deterministic.

Event sourcing: a decision's records are folded into the state at once, and its actions may run only after the
records are acknowledged by the ledger. What is not in the ledger (engines, leases, a running evaluation, which
messages hold payloads) is rebuilt from signals and headers after a restart.

| module | decides |
|---|---|
| `desk` | what all others share: state, records and actions of the decision at hand, ends of attempts and groups |
| `engines` | who is alive, and what becomes of a lost engine's work |
| `results` | which payloads and rewards count; when a group is ready |
| `training` | micro-batches, commits, fencing |
| `dispatching` | what is generated next, and where |
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.actions import (
    Observation,
    OwnHeartbeat,
    PayloadSeen,
    PipelineChanged,
    RewardsSeen,
    SendToTrainer,
    SignalSeen,
)
from rljob_core.config import JobConfig
from rljob_core.dispatch import moves
from rljob_core.messages import (
    CheckpointWritten,
    EngineGone,
    GenerationEnded,
    Hello,
    PayloadMissing,
    RoleFailed,
    StepProposed,
    TrainerReady,
)
from rljob_core.planner import dispatching, engines, results, training
from rljob_core.planner.desk import Decision, Desk
from rljob_core.records import BufferOpened, EpochClaimed, GroupReserved, JobFinished

__all__ = ["Decision", "Planner"]


class Planner(Desk):
    """State and decisions of one coordinator."""

    def __init__(self, config: JobConfig, *, prefetch: float = 0.25) -> None:
        super().__init__(config, prefetch=prefetch)

    def start(self, instance: str, now: float) -> Decision:
        """Claim the next writer epoch over the replayed state and tell everyone who is in charge."""
        self.now = now
        self.emit(EpochClaimed(self.state.writer.number + 1, instance))
        self.figures.start(now)
        if self.state.trainer is not None:
            self.act(SendToTrainer(self.state.trainer.attempt, Hello(self.epoch)))
        training.announce(self)
        dispatching.repeat(self)
        self._advance()
        return self.take_decision()

    def decide(self, observations: Sequence[Observation], now: float) -> Decision:
        """React to what was seen."""
        self.now = now
        for observation in observations:
            match observation:
                case PayloadSeen():
                    results.take_payload(self, observation)
                case RewardsSeen():
                    results.take_rewards(self, observation)
                case SignalSeen():
                    engines.take_signal(self, observation)
                case OwnHeartbeat():
                    engines.take_heartbeat(self)
                case PipelineChanged():
                    # Buffers that are open keep the bound that the ledger stamped on them.
                    self.spec = self.spec.model_copy(update={"pipeline": observation.pipeline})
                case GenerationEnded():
                    engines.take_generation_ended(self, observation)
                case EngineGone():
                    engines.lose(self, observation.engine, "Drained")
                case TrainerReady():
                    training.take_ready(self, observation)
                case StepProposed():
                    training.take_proposal(self, observation)
                case CheckpointWritten():
                    training.take_checkpoint(self, observation)
                case PayloadMissing():
                    training.take_missing_payloads(self, observation)
                case RoleFailed():
                    self.finish(JobFinished("Failed", f"{observation.role}: {observation.message}"))
        self._advance()
        return self.take_decision()

    def _advance(self) -> None:
        """Everything that what was seen makes possible."""
        if self.state.finished is not None:
            return
        self._open_buffers()
        for move in moves(self.state.buffers):
            self.emit(move)
        self._reserve()
        training.feed(self)
        training.ask_for_last_checkpoint(self)
        dispatching.evaluate(self)
        dispatching.dispatch(self)
        self._check_end()

    def _open_buffers(self) -> None:
        pipeline = self.spec.pipeline
        for step in self.state.buffers.openable(pipeline.bound, self.spec.steps):
            self.emit(BufferOpened(step, pipeline.bound, pipeline.mode, self.spec.data.prompts_per_step))

    def _reserve(self) -> None:
        for buffer in self.state.buffers.buffers.values():
            while buffer.free > 0:
                group = f"g{self.state.next_ordinal}"
                size = self.spec.data.group_size
                self.emit(GroupReserved(group, self.state.next_prompt, size, buffer.step, buffer.min_version))

    def _check_end(self) -> None:
        state, steps = self.state, self.last_version
        given_up = sum(n for reason, n in state.replaced.items() if reason != "UniformGroup")
        if given_up > self.replacement_limit:
            causes = "; ".join(list(self.failures)[-3:]) or ", ".join(state.replaced)
            message = f"{given_up} prompts of step {state.version} were given up: {causes}"
            self.finish(JobFinished("Failed", message))
            return
        evaluated = self.spec.evaluation is None or steps in state.evaluated
        saved = state.checkpoint is not None and state.checkpoint.version >= steps
        if state.version >= steps and evaluated and saved:
            self.finish(JobFinished("Succeeded"))

    @property
    def replacement_limit(self) -> int:
        """Prompts that may be given up in one step before the job fails: a whole batch of them."""
        return self.spec.data.prompts_per_step
