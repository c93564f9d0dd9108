"""The coordinator's decisions: `Planner.decide(observations, now) -> Decision(records, actions)`, deterministic.

Event sourcing: a decision's records are folded into the state at once, and its actions may run only after the
records are acknowledged by the ledger. What is not in the ledger (engines, leases, a running evaluation, which
messages hold payloads) is rebuilt from signals and headers after a restart.

| module | decides |
|---|---|
| `context` | what all others share: state, records and actions of the decision at hand, ends of attempts and groups |
| `engines` | who is alive, and what becomes of a lost engine's work |
| `migration` | what a lost engine's trajectories go on from |
| `recovery` | which commits are taken back that a ledger without its end has lost |
| `rollback` | what does not count any more when the user goes back to an earlier version |
| `results` | which payloads and rewards count; when a group is ready |
| `training` | micro-batches, commits, fencing |
| `dispatching` | what is generated next, and where |
| `pipeline_change` | from which buffer on another `spec.pipeline` binds |
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.actions import (
    Observation,
    OwnHeartbeat,
    PayloadAbsent,
    PayloadSeen,
    PipelineChanged,
    PipelineRefused,
    ProgressFound,
    ProgressListed,
    RewardsComplete,
    RewardsSeen,
    SendToTrainer,
    SignalSeen,
    StoresRead,
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
from rljob_core.planner import dispatching, engines, migration, pipeline_change, recovery, results, training
from rljob_core.planner.context import Decision, PlannerContext
from rljob_core.records import BufferOpened, EpochClaimed, GroupReserved, JobFinished
from rljob_core.trajectory import group_id

__all__ = ["Decision", "Planner"]

LOST_BATCHES = 100
"""Batches of groups whose payloads one step may find lost.

No machine's death costs as much; a store that loses whatever it is given does.
"""


class Planner(PlannerContext):
    """State and decisions of one coordinator."""

    def __init__(self, config: JobConfig, *, prefetch: float = 0.25) -> None:
        super().__init__(config, prefetch=prefetch)

    def start(self, instance: str, now: float) -> Decision:
        """Claim the next writer epoch over the replayed state; `StoresRead` must be what is observed first."""
        self.now = now
        writer = self.state.writer.successor(instance)
        self.emit(EpochClaimed(writer.number, writer.instance, self.job))
        self.figures.start(now)
        return self.take_decision()

    def _begin(self, found: StoresRead) -> None:
        """Take back what the ledger has lost and tell everyone who is in charge."""
        recovery.restore(self, found)
        if self.state.finished is not None:
            self.end_groups()  # the ledger may break off before their ends
        pipeline_change.on_pipeline_changed(self, self.spec.pipeline)
        results.complete_left(self)
        if self.state.trainer is not None:
            self.act(SendToTrainer(self.state.trainer.attempt, Hello(self.epoch)))
        training.announce(self)
        dispatching.repeat(self)
        migration.recall(self)

    def decide(self, observations: Sequence[Observation], now: float) -> Decision:
        """React to what was seen.

        Raises:
            Fenced: somebody has heard of a coordinator of a newer epoch.
        """
        self.now = now
        for observation in observations:
            match observation:
                case StoresRead():
                    self._begin(observation)
                case PayloadSeen():
                    results.on_payload(self, observation)
                    engines.let_leave(self)
                case PayloadAbsent():
                    results.on_payload_absent(self, observation)
                case ProgressFound():
                    migration.on_progress_found(self, observation)
                case ProgressListed():
                    migration.on_progress_listed(self, observation)
                case RewardsSeen():
                    results.on_rewards(self, observation)
                case RewardsComplete():
                    results.on_rewards_complete(self, observation)
                case SignalSeen():
                    engines.on_signal(self, observation)
                case OwnHeartbeat():
                    engines.on_heartbeat(self)
                    results.on_heartbeat(self)
                case PipelineChanged():
                    pipeline_change.on_pipeline_changed(self, observation.pipeline)
                case PipelineRefused():
                    self.pipeline_refused = observation.reason
                case GenerationEnded():
                    engines.on_generation_ended(self, observation)
                case EngineGone():
                    engines.on_engine_gone(self, observation)
                case TrainerReady():
                    training.on_trainer_ready(self, observation)
                case StepProposed():
                    training.on_step_proposed(self, observation)
                case CheckpointWritten():
                    training.on_checkpoint_written(self, observation)
                case PayloadMissing():
                    training.on_payload_missing(self, observation)
                case RoleFailed():
                    self._on_role_failed(observation)
        self._advance()
        return self.take_decision()

    def _on_role_failed(self, failed: RoleFailed) -> None:
        trainer = self.state.trainer
        if failed.attempt and trainer is not None and failed.attempt < trainer.attempt:
            return  # a gang that was replaced, which may not find what its successor has removed
        self.finish(JobFinished("Failed", f"{failed.role}: {failed.message}"))

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
        migration.seek(self)
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
                prompt, size = self.state.next_prompt, self.spec.data.group_size
                self.emit(GroupReserved(group_id(prompt), prompt, size, buffer.step, buffer.min_version))

    def _check_end(self) -> None:
        state, steps = self.state, self.last_version
        given_up, lost = state.replaced["PromptExhausted"], state.replaced["PayloadLost"]
        if given_up > self.replacement_limit:
            causes = "; ".join(list(self.failures)[-3:])
            message = f"{given_up} prompts of step {state.version} were given up: {causes}"
            self.finish(JobFinished("Failed", message))
            return
        if lost > LOST_BATCHES * self.replacement_limit:
            message = (
                f"the payloads of {lost} groups were not there when step {state.version} was to train on them"
            )
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
