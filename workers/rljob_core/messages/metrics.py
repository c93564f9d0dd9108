"""Statistics for people: what a step did, and where the job stands. Nothing decides by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from pydantic import TypeAdapter

from rljob_core.failures import Failure
from rljob_core.held_out import HeldOutScore
from rljob_core.messages.signals import WeightSwap
from rljob_core.record_fields import OMITTED_IF_EMPTY, OMITTED_IF_NONE
from rljob_core.records import PipelineSet


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of one training step. Losses are divided by the algorithm's normaliser; times are in seconds.

    Attributes:
        loss: what the step minimised, averaged as the loss averages (docs/losses.md), with the KL term.
        kl: KL divergence to the reference model, averaged in the same way, without its factor; 0 without a reference.
        clip_fraction: share of the trained tokens whose loss was clipped.
        importance_mean: mean of the factors that correct tokens for stale data; 1 on fresh data.
        grad_norm: norm of the gradient before it was clipped to `maxGradNorm`.
        learning_rate: of this step.
        tokens: of responses that were trained on.
        staleness_mean, staleness_max: versions by which the step's trajectories were behind the policy it trained.
        seconds_waiting: for which the trainer waited for trajectories.
        seconds_training: of forward, backward and the optimizer.
        seconds_publishing: of writing the new version for the engines.
        entropy: nats per token, estimated from what the engines drew: the mean of −log p of the responses' tokens,
            under the weights that drew them. None if no token was drawn, or the backend does not say.
        truncated: share of the trajectories that ended because they had `sampling.maxTokens` tokens.
    """

    loss: float = 0.0
    kl: float = 0.0
    clip_fraction: float = 0.0
    importance_mean: float = 1.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    tokens: int = 0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    seconds_waiting: float = 0.0
    seconds_training: float = 0.0
    seconds_publishing: float = 0.0
    entropy: Annotated[float | None, OMITTED_IF_NONE] = None
    truncated: Annotated[float | None, OMITTED_IF_NONE] = None


@dataclass(frozen=True, slots=True)
class PoolSpeed:
    """How fast the engines of one pool are.

    Attributes:
        engines: that are alive.
        tokens_per_second: that they have generated together, over the last minute.
        engine_tokens_per_second: that one of them would generate with all its slots taken; 0 while unknown.
        busy: share of their slots, or of those for which there is cache, that were taken over the last minute.
    """

    engines: int
    tokens_per_second: float
    engine_tokens_per_second: float
    busy: float = 1.0


def tells_evaluation(field: Callable[[str], object]) -> bool:
    """Whether a line is of an evaluation, also of one that fails, by its fields' values; None of one that it lacks."""
    return field("heldout_sampled") is not None or bool(field("heldout_failed"))


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One line of metrics.jsonl: a commit (`reward_mean` is set), an evaluation (`heldout_sampled` or `heldout_failed`
    is set) or the end.

    Attributes:
        step, version: committed steps; of an evaluation, the version that was evaluated.
        reward_mean, reward_std: mean and standard deviation of the rewards of all answers that the step trained on, or
            that were scored and given up since the step before, as those of groups that `dropUniformGroups` replaces.
        reward_mean_trained, reward_std_trained: the same of those alone that the step trained on.
        heldout_sampled, heldout_greedy: mean rewards of the evaluation, at `spec.rollout.sampling` and greedily.
        last_version: the version that ends the job, if it is a later one than `spec.steps`; else 0.
        heldout_set: name of the first held-out set, if there are several; what follows is of this one.
        heldout_samples, heldout_answers: prompts of the evaluation, and answers to all of them.
        heldout_sampled_ci95, heldout_greedy_ci95: half the width of the 95 % confidence interval of each mean: the
            normal interval over prompts, with the answers to one prompt as one cluster. None with a single prompt.
        heldout_pass_at: pass@k by k (Chen et al. 2021), if `spec.evaluation.groupSize` is more than 1.
        heldout_failed, heldout_error: answers of the evaluation that have no score and count as 0, and what the first
            of them failed of. More than a tenth fail the evaluation: it has no score.
        heldout_sets: the same of the other held-out sets, by name.
        heldout_mixed, heldout_newest: answers of the evaluation, to all sets, that hold tokens of later versions, and
            the newest of these versions; 0 if none does.
        heldout_seconds: from the evaluation's start, by this coordinator, to its last score.
        response_tokens_mean: mean length of the step's responses.
        optimizer_reset: why the optimizer continued with another state than the one that the newest steps left, and
            since which version; empty if it did not, as far as this coordinator knows.
        samples_lost: what a reward worker says about samples that it cannot keep; empty if all are kept.
        seconds, tokens_generated: of the whole job: in which a coordinator ran, and that engines generated while one
            did. A coordinator counts on from its predecessor's newest line, so neither goes back.
        trajectories, aborted, attempts_failed: counts over the whole job, by outcome or reason.
        groups_uniform, uniform_prompts: of the step's groups, and of those that they replaced because of this, the
            share whose rewards were all equal: they teach nothing; and the first prompts of these.
        reward_parts: mean of each function's score over the answers of `reward_mean`, as far as this coordinator read
            them.
        queues: open trajectories by state.
        tokens_per_second: that all engines together have generated since the line before.
        engines: that are alive.
        slots, assigned: trajectories that `engines` can generate at once, and how many of these are taken.
        trainer_attempt: number of the trainer's attempt, from 1.
        epoch: how many coordinators the job has had.
        length_correlation, length_recall: how well lengths of answers were predicted: rank correlation, and the part of
            the longest fifth of groups that was predicted to be (`rljob_core.lengths.quality`); 0 while unknown.
        stats: of a commit: what the step did.
        writer: the number of this one's writer epoch, which differs from that of any other.
        pipeline: the `spec.pipeline` of the buffers that open now.
        pipeline_refused: why the newest `spec.pipeline` is not in force; empty if it is.
        room_refused: why the trajectory stream is smaller than everything that may be under way; empty if it is not.
        room_wanted: bytes that it would have to hold; 0 if it holds them.
        sites_away: sites that cannot be reached; their engines count as the others do.
        sites_held: sites that get no new work until the hub has taken more of what they have stored for it.
        trained_at: of a commit: how many of the step's trajectories were generated at each site besides the hub.
        pools: speeds of the engines by pool, in a job that has a pool of scaling policy Internal.
        swaps: swaps of weights since the line before, by engine, 64 at most; after a coordinator is replaced, the
            newest ones come again.
        finished, failure: the job's outcome, once it has ended, and why it has failed, if it has.
        gone_back: the user has gone back to `version`: earlier lines about later versions, or an end, do not count.
    """

    step: int
    version: int
    seconds: float
    reward_mean: float | None = None
    reward_std: float | None = None
    reward_mean_trained: float | None = None
    reward_std_trained: float | None = None
    heldout_sampled: float | None = None
    heldout_greedy: float | None = None
    heldout_set: Annotated[str, OMITTED_IF_EMPTY] = ""
    heldout_samples: Annotated[int, OMITTED_IF_EMPTY] = 0
    heldout_answers: Annotated[int, OMITTED_IF_EMPTY] = 0
    heldout_sampled_ci95: Annotated[float | None, OMITTED_IF_NONE] = None
    heldout_greedy_ci95: Annotated[float | None, OMITTED_IF_NONE] = None
    heldout_pass_at: Annotated[dict[int, float], OMITTED_IF_EMPTY] = field(default_factory=dict)
    heldout_sets: Annotated[dict[str, HeldOutScore], OMITTED_IF_EMPTY] = field(default_factory=dict)
    heldout_newest: Annotated[int, OMITTED_IF_EMPTY] = 0
    heldout_mixed: Annotated[int, OMITTED_IF_EMPTY] = 0
    heldout_failed: Annotated[int, OMITTED_IF_EMPTY] = 0
    heldout_error: Annotated[str, OMITTED_IF_EMPTY] = ""
    heldout_seconds: Annotated[float | None, OMITTED_IF_NONE] = None
    response_tokens_mean: float | None = None
    groups_uniform: Annotated[float | None, OMITTED_IF_NONE] = None
    uniform_prompts: Annotated[tuple[int, ...], OMITTED_IF_EMPTY] = ()
    reward_parts: Annotated[dict[str, float], OMITTED_IF_EMPTY] = field(default_factory=dict)
    tokens_generated: int = 0
    tokens_per_second: float = 0.0
    trajectories: dict[str, int] = field(default_factory=dict)
    aborted: dict[str, int] = field(default_factory=dict)
    attempts_failed: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    engines: int = 0
    slots: int = 0
    assigned: int = 0
    trainer_attempt: int = 0
    epoch: int = 0
    stats: StepStats | None = None
    pipeline: PipelineSet | None = None
    pipeline_refused: str = ""
    room_refused: Annotated[str, OMITTED_IF_EMPTY] = ""
    room_wanted: Annotated[int, OMITTED_IF_EMPTY] = 0
    finished: str = ""
    failure: Annotated[Failure | None, OMITTED_IF_NONE] = None
    gone_back: bool = False
    last_version: Annotated[int, OMITTED_IF_EMPTY] = 0
    optimizer_reset: Annotated[str, OMITTED_IF_EMPTY] = ""
    samples_lost: Annotated[str, OMITTED_IF_EMPTY] = ""
    writer: Annotated[int, OMITTED_IF_EMPTY] = 0
    length_correlation: Annotated[float, OMITTED_IF_EMPTY] = 0.0
    length_recall: Annotated[float, OMITTED_IF_EMPTY] = 0.0
    pools: Annotated[dict[str, PoolSpeed], OMITTED_IF_EMPTY] = field(default_factory=dict)
    sites_away: Annotated[tuple[str, ...], OMITTED_IF_EMPTY] = ()
    sites_held: Annotated[tuple[str, ...], OMITTED_IF_EMPTY] = ()
    trained_at: Annotated[dict[str, int], OMITTED_IF_EMPTY] = field(default_factory=dict)
    swaps: Annotated[dict[str, tuple[WeightSwap, ...]], OMITTED_IF_EMPTY] = field(default_factory=dict)

    @property
    def is_evaluation(self) -> bool:
        """Whether it is the line of an evaluation, also of one that fails."""
        return tells_evaluation(partial(getattr, self))

    @property
    def held_out(self) -> dict[str, HeldOutScore]:
        """The scores of an evaluation by held-out set, whose name is empty if there is one alone."""
        if not self.is_evaluation:
            return {}
        first = HeldOutScore(
            self.heldout_sampled,
            self.heldout_greedy,
            self.heldout_samples,
            self.heldout_answers,
            self.heldout_failed,
            self.heldout_error,
            self.heldout_sampled_ci95,
            self.heldout_greedy_ci95,
            self.heldout_pass_at,
        )
        return {self.heldout_set: first, **self.heldout_sets}

    @property
    def unscored(self) -> str:
        """In words, how many answers of an evaluation have no score, and why; empty if all have one."""
        found = {name: score.unscored for name, score in self.held_out.items() if score.unscored}
        return "; ".join(f"{name}: {text}" if name else text for name, text in found.items())


STEP_METRICS: TypeAdapter[StepMetrics] = TypeAdapter(StepMetrics)
