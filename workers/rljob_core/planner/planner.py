"""The coordinator's decisions as a deterministic function: `Planner.decide(observations, now) -> Decision`.

The planner is event-sourced. It applies a decision's records to its state at once; the coordinator may run the
decision's actions only after the ledger has acknowledged the records. Whatever is not in the ledger (engines, leases,
a running evaluation, which messages hold payloads) is learned again after a restart from signals and headers.

| module | responsibility |
|---|---|
| `context` | what the other modules share: the state, the parts below, the decision being made |
| `liveness`, `stored_messages`, `progress_lookups`, `cohorts`, `stream_room`, `predicted_lengths` | parts of the context that are not in the ledger |
| `engines` | react to signals; declare engines lost and give their work to others |
| `heartbeats` | what the coordinator's own heartbeats count: leases, sites that are silent, what seems lost |
| `sites`, `site_links` | engines at sites that cannot be reached: what is given to others, and when |
| `site_marks` | what is waited for before a loss at a site counts: results that are on their way from there |
| `site_transfers`, `far_engines` | links to sites: backlogs, lag of weights, what work there is worth |
| `migration` | which progress a lost engine's trajectories inherit |
| `balancing`, `migrations` | which trajectories move to an engine that ends them sooner |
| `results` | which payloads and rewards count; when a group is ready |
| `training` | micro-batches, commits, the trainer's fence, versions that the user revokes |
| `buffers` | open staleness buffers, exchange groups, reserve entries |
| `dispatch`, `engine_choice` | what is generated next, and on which engine |
| `longest_first` | whether the longest answers are generated first |
| `admission` | how much is begun ahead of the trainer |
| `backpressure` | what has to wait because the trajectory stream has no room for it |
| `placement` | which engine takes the siblings of a group |
| `quarantine` | which trajectories may be what kills engines, and how they are tried apart |
| `early_trial` | which group is tried before it is quarantined, as two deaths point at it; which deaths are its own |
| `evaluation` | the scores on held-out prompts |
| `endings` | how attempts, groups and the job end |
| `spec_change` | a changed `spec.pipeline`, and any other change of the spec that restarts no coordinator |
| `recovery` | commits to restore that the ledger has lost |
| `running_metrics`, `metrics_line`, `pool_speeds` | statistics for people, and for those who scale pools |
"""  # noqa: E501  the table

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.actions import (
    EngineDrained,
    LengthsPredicted,
    MarkFound,
    Observation,
    OwnHeartbeat,
    PayloadAbsent,
    PayloadSeen,
    PipelineChanged,
    PipelineRefused,
    ProgressFound,
    ProgressListed,
    PromptsMeasured,
    RewardsComplete,
    RewardsSeen,
    SendToTrainer,
    SignalSeen,
    SiteHeartbeat,
    SiteMarkSeen,
    SitesLost,
    SpecChanged,
    StoresRead,
    StreamLimit,
)
from rljob_core.config import JobConfig
from rljob_core.job_state import JobState
from rljob_core.messages import (
    CheckpointWritten,
    EngineDied,
    EngineGone,
    GenerationEnded,
    Hello,
    OptimizerReset,
    PayloadMissing,
    RoleFailed,
    SamplesLost,
    StepProposed,
    TrainerReady,
)
from rljob_core.planner import (
    backpressure,
    balancing,
    buffers,
    dispatch,
    early_trial,
    endings,
    engines,
    heartbeats,
    longest_first,
    migration,
    recovery,
    results,
    site_marks,
    sites,
    spec_change,
    training,
)
from rljob_core.planner.context import Decision, PlannerContext
from rljob_core.planner.metrics_line import note_samples_lost, publish, samples_lost
from rljob_core.records import EpochClaimed
from rljob_core.trajectory import group_of


class Planner:
    """One coordinator's decisions.

    Args:
        config: of the job.
        prefetch: work sent to an engine beyond its slots, as a fraction of them.
        state: what the ledger says; None for an empty ledger.
        held_out: prompts that an evaluation asks of each held-out set; None: as many as of data without end.

    Attributes:
        context: everything that decisions depend on.
    """

    def __init__(
        self,
        config: JobConfig,
        *,
        prefetch: float = 0.25,
        state: JobState | None = None,
        held_out: Sequence[int] | None = None,
    ) -> None:
        state = JobState() if state is None else state
        self.context = PlannerContext(config, prefetch=prefetch, state=state, held_out=held_out)

    @property
    def state(self) -> JobState:
        """The job's state: the ledger's records and those decided since."""
        return self.context.state

    @property
    def epoch(self) -> int:
        """Number of this coordinator's writer epoch."""
        return self.context.epoch

    def start(self, instance: str, now: float) -> Decision:
        """Claim the next writer epoch; the first observation afterwards must be `StoresRead`."""
        context = self.context
        context.now = now
        writer = context.state.writer.successor(instance)
        context.emit(EpochClaimed(writer.number, writer.instance, context.job))
        context.metrics.start(now, epoch=context.epoch)
        context.cohorts.inherited = frozenset(map(group_of, context.state.survivors))
        return context.flush_decision()

    def decide(self, observations: Sequence[Observation], now: float) -> Decision:
        """React to observations.

        Args:
            now: seconds of the coordinator's own clock; for metrics, and for how much is begun ahead of the trainer.

        Raises:
            Fenced: an engine or trainer follows a newer coordinator.
        """
        context = self.context
        context.now = now
        for observation in observations:
            match observation:
                case StoresRead():
                    _take_charge(context, observation)
                case PayloadSeen():
                    results.on_payload(context, observation)
                    engines.remove_drained(context)
                case PayloadAbsent():
                    results.on_payload_absent(context, observation)
                case EngineDrained():
                    engines.on_engine_drained(context, observation)
                case ProgressFound():
                    context.lookups.answer(observation)
                case ProgressListed():
                    migration.on_progress_listed(context, observation)
                case RewardsSeen():
                    results.on_rewards(context, observation)
                case RewardsComplete():
                    results.on_rewards_complete(context, observation)
                case SignalSeen():
                    engines.on_signal(context, observation)
                case OwnHeartbeat():
                    heartbeats.on_heartbeat(context)
                    results.on_heartbeat(context)
                    backpressure.on_heartbeat(context)
                case SiteHeartbeat():
                    heartbeats.on_site_heartbeat(context, observation)
                case SiteMarkSeen():
                    engines.on_site_mark_seen(context, observation)
                case MarkFound():
                    site_marks.on_mark_found(context, observation)
                case SitesLost():
                    heartbeats.on_sites_lost(context, observation.sites)
                case StreamLimit():
                    backpressure.on_stream_limit(context, observation)
                case PromptsMeasured():
                    backpressure.on_prompts_measured(context, observation)
                case LengthsPredicted():
                    longest_first.on_lengths_predicted(context, observation)
                case PipelineChanged():
                    spec_change.on_pipeline_changed(context, observation.pipeline)
                case SpecChanged():
                    spec_change.on_spec_changed(context, observation.spec)
                case PipelineRefused():
                    context.pipeline_refused = observation.reason
                case GenerationEnded():
                    engines.on_generation_ended(context, observation)
                case EngineDied():
                    engines.on_engine_died(context, observation)
                case EngineGone():
                    engines.on_engine_gone(context, observation)
                case TrainerReady():
                    training.on_trainer_ready(context, observation)
                case StepProposed():
                    training.on_step_proposed(context, observation)
                case CheckpointWritten():
                    training.on_checkpoint_written(context, observation)
                case PayloadMissing():
                    training.on_payload_missing(context, observation)
                case OptimizerReset():
                    training.on_optimizer_reset(context, observation)
                case SamplesLost():
                    _on_samples_lost(context, observation)
                case RoleFailed():
                    _on_role_failed(context, observation)
        _advance(context)
        return context.flush_decision()


def _take_charge(context: PlannerContext, found: StoresRead) -> None:
    """Restore the commits that the ledger has lost, repeat what may not have been sent, and greet the trainer."""
    context.metrics.continue_from(found.seconds, found.tokens_generated)
    recovery.restore(context, found)
    for sibling in context.state.siblings():
        context.sites.meet(sibling.site)  # also where a pool was that was removed: its engines may live on
    if context.state.finished is not None:
        endings.abort_all_groups(context)  # the ledger may break off before their ends
    spec_change.on_pipeline_changed(context, context.spec.pipeline)
    results.complete_rewarded_groups(context)
    if context.state.trainer is not None:
        context.act(SendToTrainer(context.state.trainer.attempt, Hello(context.epoch)))
    training.announce(context)
    dispatch.resend(context)
    migration.find_interrupted(context)


def _on_samples_lost(context: PlannerContext, event: SamplesLost) -> None:
    """Say so where the user looks, and when it is over; nothing else follows."""
    before = samples_lost(context)
    note_samples_lost(context, event)
    if samples_lost(context) != before:
        publish(context)


def _on_role_failed(context: PlannerContext, failed: RoleFailed) -> None:
    trainer = context.state.trainer
    if failed.attempt and trainer is not None and failed.attempt < trainer.attempt:
        return  # a replaced gang: its successor may have removed the files that it failed to find
    endings.finish_job(context, failed.failure.said_by(failed.role))


def _advance(context: PlannerContext) -> None:
    """Do everything that the observations have made possible."""
    if context.state.finished is not None:
        return
    early_trial.give_up(context)
    buffers.open_buffers(context)
    buffers.move_groups(context)
    buffers.reserve_groups(context)
    training.assign_micro_batches(context)
    training.ask_for_last_checkpoint(context)
    sites.give_to_others(context)
    migration.look_up_progress(context)
    site_marks.send_marks(context)
    dispatch.advance_evaluation(context)
    backpressure.measure_prompts(context)
    backpressure.make_room(context)
    longest_first.predict_lengths(context)
    balancing.release_stragglers(context)
    dispatch.dispatch(context)
    endings.finish_if_due(context)
