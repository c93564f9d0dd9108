"""Statistics for people: what a step did, and where the job stands. Nothing decides by them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import TypeAdapter

from rljob_core.records import PipelineSet
from rljob_core.records.omitted import OMITTED_IF_EMPTY


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of one training step. Losses are divided by the algorithm's normaliser; times are in seconds."""

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


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One line of metrics.jsonl: a commit (`reward_mean` is set), an evaluation (`heldout_sampled` is set) or the end.

    Attributes:
        step, version: committed steps; of an evaluation, the version that was evaluated.
        last_version: the version that ends the job, if it is a later one than `spec.steps`; else 0.
        heldout_mixed: answers of the evaluation, of two for each prompt, that hold tokens of later versions, of which
            `heldout_newest` is the newest; 0 if none does.
        optimizer_reset: why the optimizer continued with another state than the one that the newest steps left, and
            since which version; empty if it did not, as far as this coordinator knows.
        seconds, tokens_generated: since this coordinator started.
        trajectories, aborted, attempts_failed: counts over the whole job, by outcome or reason.
        queues: open trajectories by state.
        slots, assigned: trajectories that `engines` can generate at once, and how many of these are taken.
        epoch: how many coordinators the job has had.
        length_correlation, length_recall: how well lengths of answers were predicted: rank correlation, and the part of
            the longest fifth of groups that was predicted to be (`rljob_core.lengths.quality`); 0 while unknown.
        writer: the number of this one's writer epoch, which differs from that of any other; 0 from earlier releases.
        pipeline: the `spec.pipeline` of the buffers that open now.
        pipeline_refused: why the newest `spec.pipeline` is not in force; empty if it is.
        room_refused: why the trajectory stream is smaller than everything that may be under way; empty if it is not.
        room_wanted: bytes that it would have to hold; 0 if it holds them.
        pools: speeds of the engines by pool, in a job that has a pool of scaling policy Internal.
        finished, message: the job's outcome, once it has ended.
        gone_back: the user has gone back to `version`: earlier lines about later versions, or an end, do not count.
    """

    step: int
    version: int
    seconds: float
    reward_mean: float | None = None
    reward_std: float | None = None
    heldout_sampled: float | None = None
    heldout_greedy: float | None = None
    heldout_newest: Annotated[int, OMITTED_IF_EMPTY] = 0
    heldout_mixed: Annotated[int, OMITTED_IF_EMPTY] = 0
    response_tokens_mean: float | None = None
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
    message: str = ""
    gone_back: bool = False
    last_version: Annotated[int, OMITTED_IF_EMPTY] = 0
    optimizer_reset: Annotated[str, OMITTED_IF_EMPTY] = ""
    writer: Annotated[int, OMITTED_IF_EMPTY] = 0
    length_correlation: Annotated[float, OMITTED_IF_EMPTY] = 0.0
    length_recall: Annotated[float, OMITTED_IF_EMPTY] = 0.0
    pools: Annotated[dict[str, PoolSpeed], OMITTED_IF_EMPTY] = field(default_factory=dict)


STEP_METRICS: TypeAdapter[StepMetrics] = TypeAdapter(StepMetrics)
