"""Sums behind the job's metrics, for people; no decision depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from rljob_core.job_state import JobState, Sibling
from rljob_core.messages import StepMetrics, StepStats
from rljob_core.records import Evaluated


class RunningMetrics:
    """Sums since this coordinator started, and the statistics of the newest step."""

    def __init__(self) -> None:
        self._started = 0.0
        self._engine_tokens: dict[str, int] = {}
        self._tokens = 0
        self._mark = (0.0, 0)  # time and tokens at the last line: the rate is between two lines
        self._step = StepMetrics(step=0, version=0, seconds=0.0)

    def start(self, now: float) -> None:
        """Start the clock."""
        self._started = now
        self._mark = (now, 0)

    def tokens(self, engine: str, total: int) -> None:
        """Take the number of tokens that an engine has generated since it started."""
        self._tokens += max(0, total - self._engine_tokens.get(engine, 0))
        self._engine_tokens[engine] = total

    def engine_gone(self, engine: str) -> None:
        """Forget a removed engine's counter; its tokens stay counted."""
        self._engine_tokens.pop(engine, None)

    def consumed(self, siblings: Sequence[Sibling], *, step: int) -> None:
        """Take the statistics of the trajectories that a step consumes, just before its commit."""
        rewards = [s.reward for s in siblings if s.reward is not None]
        lengths = [s.payload.response_tokens for s in siblings if s.payload is not None]
        staleness = [step - s.payload.span.min for s in siblings if s.payload is not None]
        self._step = StepMetrics(
            step=step + 1,
            version=step + 1,
            seconds=0.0,
            reward_mean=fmean(rewards),
            reward_std=pstdev(rewards),
            response_tokens_mean=fmean(lengths),
            # Here too, so that a commit from a repeated proposal, which has no stats, has its staleness.
            stats=StepStats(staleness_mean=fmean(staleness), staleness_max=max(staleness)),
        )

    def step(self, stats: StepStats) -> None:
        """Take the trainer's own statistics of the step that was just committed."""
        known = self._step.stats or StepStats()
        self._step = replace(
            self._step,
            stats=replace(stats, staleness_mean=known.staleness_mean, staleness_max=known.staleness_max),
        )

    def line(self, state: JobState, *, now: float) -> StepMetrics:
        """The job's line at time `now`, without statistics of a step or an evaluation."""
        since, before = self._mark
        rate = (self._tokens - before) / (now - since) if now > since else 0.0
        self._mark = (now, self._tokens)
        return StepMetrics(
            step=state.version,
            version=state.version,
            seconds=now - self._started,
            tokens_generated=self._tokens,
            tokens_per_second=rate,
            trajectories=dict(state.counts),
            aborted=dict(state.aborted),
            attempts_failed=dict(state.attempts_failed),
            trainer_attempt=state.trainer.attempt if state.trainer else 0,
            epoch=state.writer.count,
            writer=state.writer.number,
            finished=state.finished.outcome if state.finished else "",
            message=state.finished.message if state.finished else "",
        )

    def stepped(self, line: StepMetrics) -> StepMetrics:
        """The line with the statistics of the step that was just committed."""
        step = self._step
        return replace(
            line,
            reward_mean=step.reward_mean,
            reward_std=step.reward_std,
            response_tokens_mean=step.response_tokens_mean,
            stats=step.stats,
        )

    @staticmethod
    def evaluated(record: Evaluated, line: StepMetrics) -> StepMetrics:
        """The line with an evaluation's scores, under the version that was evaluated."""
        return replace(
            line,
            step=record.version,
            version=record.version,
            heldout_sampled=record.sampled,
            heldout_greedy=record.greedy,
            heldout_newest=record.newest,
            heldout_mixed=record.mixed,
        )
