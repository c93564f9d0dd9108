"""All metrics of the roles: docs/metrics.md, the dashboard and the alert rules are made of them, or checked by them."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_runtime.telemetry.metric import (
    LONG_SECONDS,
    SHORT_SECONDS,
    VERSIONS,
    Metric,
    counter,
    gauge,
    histogram,
)


class CoordinatorMetrics:
    """Metrics of the coordinator, which sees the whole job."""

    STEP = gauge("rljob_coordinator_step", "Committed steps: the newest version of the weights.")
    LAST_STEP = gauge("rljob_coordinator_last_step", "The step that ends the job.")
    COMMIT_TIMESTAMP = gauge(
        "rljob_coordinator_commit_timestamp_seconds",
        "When the newest step was committed, or this coordinator started, in seconds since 1970.",
    )
    RUNNING = gauge("rljob_coordinator_running", "1 until the job has ended, then 0.")
    FAILED = gauge("rljob_coordinator_failed", "1 if the job has ended without success.")
    WRITER_EPOCH = gauge("rljob_coordinator_writer_epoch", "How many coordinators the job has had.")
    TRAJECTORIES = counter(
        "rljob_coordinator_trajectories_total",
        "Trajectories of the whole job, by event: planned, generated, consumed by a step, or resumed from stored "
        "progress after a move or a death.",
        "event",
    )
    RESUMED_TOKENS = counter(
        "rljob_coordinator_resumed_tokens_total",
        "Tokens that were not generated again, thanks to stored progress.",
    )
    ABORTED = counter(
        "rljob_coordinator_aborted_trajectories_total",
        "Trajectories of the whole job that ended without being trained, by reason.",
        "reason",
    )
    FAILED_ATTEMPTS = counter(
        "rljob_coordinator_failed_attempts_total",
        "Attempts of the whole job that were started again, by reason.",
        "reason",
    )
    OPEN = gauge(
        "rljob_coordinator_open_trajectories",
        "Open trajectories by state: waiting for an engine, generating, or waiting for a score.",
        "state",
    )
    BUFFER_GROUPS = gauge(
        "rljob_coordinator_buffer_groups",
        "Groups in the staleness buffer of the step that is `ahead` of the current one (8+: of all further ones), by "
        "state: reserved, occupied, training, or free.",
        "ahead",
        "state",
    )
    ENGINES = gauge("rljob_coordinator_engines", "Engines that hold a lease.")
    SLOTS = gauge("rljob_coordinator_slots", "Trajectories that these engines can generate at once.")
    SLOTS_TAKEN = gauge("rljob_coordinator_slots_taken", "Of these slots, those that have work.")
    STARVED_SECONDS = counter(
        "rljob_coordinator_starved_seconds_total",
        "Seconds for which a stage had nothing to do: rollout (weighed by the share of free slots), reward, trainer.",
        "stage",
    )
    DECIDE_SECONDS = histogram(
        "rljob_coordinator_decide_seconds",
        "Time of one decision about a batch of observations.",
        SHORT_SECONDS,
    )
    LEDGER_APPEND_SECONDS = histogram(
        "rljob_coordinator_ledger_append_seconds",
        "Time until the ledger has acknowledged a decision's records.",
        SHORT_SECONDS,
    )
    LEDGER_RECORDS = counter("rljob_coordinator_ledger_records_total", "Records appended to the ledger.")
    STREAM_BYTES = gauge("rljob_coordinator_stream_bytes", "Bytes that a stream of the job holds.", "stream")
    STREAM_LIMIT_BYTES = gauge(
        "rljob_coordinator_stream_limit_bytes",
        "Bytes that this stream may hold; absent without a limit.",
        "stream",
    )
    ROOM_WANTED_BYTES = gauge(
        "rljob_coordinator_room_wanted_bytes",
        "Bytes that the stream of trajectories would have to hold; 0 if it holds them.",
    )
    REWARD_MEAN = gauge(
        "rljob_coordinator_reward_mean",
        "Mean reward of all answers that were scored for the newest step, those of replaced groups included.",
    )
    REWARD_STD = gauge("rljob_coordinator_reward_std", "Standard deviation of the same rewards.")
    REWARD_MEAN_TRAINED = gauge(
        "rljob_coordinator_reward_mean_trained", "Mean reward of the answers that the newest step trained on."
    )
    REWARD_PART = gauge(
        "rljob_coordinator_reward_part_mean",
        "Mean score of each reward function, before its weight, over the answers of reward_mean.",
        "function",
    )
    HELDOUT_REWARD = gauge(
        "rljob_coordinator_heldout_reward_mean",
        "Mean reward of the newest evaluation, by how it was sampled (sampled or greedy) and, if there are several, by "
        "held-out set.",
        "sampling",
        "set",
    )
    HELDOUT_PASS = gauge(
        "rljob_coordinator_heldout_pass_at",
        "pass@k of the newest evaluation, by k and, if there are several, by held-out set.",
        "k",
        "set",
    )
    RESPONSE_TOKENS_MEAN = gauge(
        "rljob_coordinator_response_tokens_mean", "Mean length of the newest step's responses."
    )
    SITES_AWAY = gauge("rljob_coordinator_sites_away", "Sites that cannot be reached.")
    SITES_HELD = gauge(
        "rljob_coordinator_sites_held", "Sites that get no new work until their outbox has drained."
    )
    COST_PER_HOUR = gauge(
        "rljob_coordinator_engines_cost_per_hour",
        "Price of the engines that hold a lease, by the pools' costPerHour and in its currency.",
    )
    COST = counter(
        "rljob_coordinator_engines_cost_total",
        "What engines that held a lease have cost since this coordinator started, by pool, in the currency of "
        "costPerHour; only of pools that have one.",
        "pool",
    )


class RolloutMetrics:
    """Metrics of one engine."""

    VERSION = gauge("rljob_rollout_version", "Version of the weights in use; -1 before the first.")
    SLOTS = gauge("rljob_rollout_slots", "Trajectories that the engine generates at once.")
    RUNNING = gauge("rljob_rollout_running_trajectories", "Trajectories that it is generating.")
    WAITING = gauge(
        "rljob_rollout_waiting_trajectories", "Trajectories that wait for a slot or for newer weights."
    )
    IN_ENVIRONMENT = gauge(
        "rljob_rollout_episodes_in_environment", "Episodes that wait for their environment, and need no slot."
    )
    STORING = gauge("rljob_rollout_storing_trajectories", "Trajectories that are being stored.")
    TOKENS = counter("rljob_rollout_tokens_total", "Tokens generated since the process started.")
    CONTEXT_TOKENS = gauge(
        "rljob_rollout_context_tokens", "Tokens, prompts included, of what it is generating."
    )
    KV_TOKENS = gauge(
        "rljob_rollout_kv_cache_tokens", "Tokens that the KV cache holds at most, if the engine says so."
    )
    SECONDS = counter(
        "rljob_rollout_seconds_total",
        "Seconds of the engine by state: starting, generating, swapping weights, waiting for weights, idle; seen every "
        "second.",
        "state",
    )
    ENDED = counter(
        "rljob_rollout_trajectories_total",
        "Attempts that ended here: completed, or stopped (moved, restarted, failed).",
        "end",
    )
    STORE_SECONDS = histogram(
        "rljob_rollout_store_seconds",
        "Time until trajectories that ended together were stored.",
        LONG_SECONDS,
    )
    SWAP_SECONDS = histogram(
        "rljob_rollout_swap_seconds",
        "Time in which the engine took verified weights; with `Keep`, with the wait for its responses to end.",
        LONG_SECONDS,
    )
    READ_SECONDS = histogram(
        "rljob_rollout_weights_read_seconds",
        "Time in which a version's weights were read and verified.",
        LONG_SECONDS,
    )
    REJECTED = counter(
        "rljob_rollout_weights_failures_total",
        "Versions that could not be loaded, by reason: WeightsRejected, WeightsUnavailable, WeightsAwaited.",
        "reason",
    )
    DRAINING = gauge("rljob_rollout_draining", "1 while the engine takes no new work.")
    OUTBOX_BYTES = gauge(
        "rljob_rollout_outbox_bytes", "Of an engine at a site: bytes stored there for the hub."
    )
    OUTBOX_LIMIT_BYTES = gauge(
        "rljob_rollout_outbox_limit_bytes", "Bytes that may be stored there; absent without a limit."
    )


class RewardMetrics:
    """Metrics of one reward worker."""

    SCORED = counter(
        "rljob_reward_trajectories_total",
        "Trajectories by result: scored, failed, or lost (not readable).",
        "result",
    )
    SCORE_SECONDS = histogram(
        "rljob_reward_score_seconds", "Time of one score, with the wait for a free process.", LONG_SECONDS
    )
    PUBLISH_SECONDS = histogram(
        "rljob_reward_publish_seconds", "Time until a message of scores was stored.", SHORT_SECONDS
    )
    IN_PROGRESS = gauge(
        "rljob_reward_messages_in_progress", "Messages of trajectories that are being scored."
    )
    SECONDS = counter(
        "rljob_reward_seconds_total", "Seconds of the worker by state: starting, scoring, idle.", "state"
    )


class TrainerMetrics:
    """Metrics of a trainer's first rank."""

    ATTEMPT = gauge("rljob_trainer_attempt", "Number of this trainer gang.")
    VERSION = gauge("rljob_trainer_version", "Version of the weights in memory.")
    STEPS = counter("rljob_trainer_steps_total", "Steps whose weights were written.")
    MICRO_BATCHES = counter("rljob_trainer_micro_batches_total", "Micro-batches that were trained on.")
    TRAJECTORIES = counter("rljob_trainer_trajectories_total", "Trajectories that were trained on.")
    TOKENS = counter("rljob_trainer_tokens_total", "Tokens of the steps that were finished.")
    SECONDS = counter(
        "rljob_trainer_seconds_total",
        "Seconds by state: starting, waiting for a micro-batch, training, publishing weights, checkpointing, loading.",
        "state",
    )
    STEP_SECONDS = histogram(
        "rljob_trainer_step_seconds",
        "Time of forward and backward passes and the optimizer in a step.",
        LONG_SECONDS,
    )
    PUBLISH_SECONDS = histogram(
        "rljob_trainer_publish_seconds", "Time until a version of the weights was durable.", LONG_SECONDS
    )
    CHECKPOINT_SECONDS = histogram(
        "rljob_trainer_checkpoint_seconds", "Time in which a checkpoint was saved.", LONG_SECONDS
    )
    STALENESS = histogram(
        "rljob_trainer_staleness_versions",
        "Staleness of each trajectory that was trained on, by its payload: the step minus its oldest version.",
        VERSIONS,
    )
    MISSING = counter(
        "rljob_trainer_missing_payloads_total", "Trajectories whose payloads were not stored any more."
    )
    LOSS = gauge("rljob_trainer_loss", "Loss of the newest step.")
    KL = gauge("rljob_trainer_kl", "KL divergence from the reference in the newest step.")
    CLIP_RATIO = gauge(
        "rljob_trainer_clip_ratio", "Share of the newest step's tokens that were clipped, 0 to 1."
    )
    IMPORTANCE_MEAN = gauge(
        "rljob_trainer_importance_mean", "Mean importance weight of the newest step's tokens."
    )
    GRAD_NORM = gauge("rljob_trainer_grad_norm", "Norm of the newest step's gradient.")
    LEARNING_RATE = gauge("rljob_trainer_learning_rate", "Learning rate of the newest step.")


class AuditMetrics:
    """What `rljob audit --metrics` writes, for a collector of files or a push gateway."""

    VIOLATIONS = gauge(
        "rljob_audit_violations",
        "Violations that the newest audit found, by its verdict: violated, unfinished or damaged.",
        "namespace",
        "rljob",
        "verdict",
    )
    TIMESTAMP = gauge(
        "rljob_audit_timestamp_seconds",
        "When the newest audit ended, in seconds since 1970.",
        "namespace",
        "rljob",
    )


def _of(table: type) -> tuple[Metric, ...]:
    return tuple(value for value in vars(table).values() if isinstance(value, Metric))


CATALOGUE: Mapping[str, tuple[Metric, ...]] = {
    "coordinator": _of(CoordinatorMetrics),
    "rollout": _of(RolloutMetrics),
    "reward": _of(RewardMetrics),
    "trainer": _of(TrainerMetrics),
    "audit": _of(AuditMetrics),
}
"""The metrics of each role, and of the audit, in the order of their definition."""
