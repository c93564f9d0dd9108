"""Sums behind the job's metrics, for people; no decision depends on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rljob_core.advantage import UNIFORM, deviation, is_uniform
from rljob_core.job_state import GroupState, JobState, Untrained
from rljob_core.messages import (
    SWAPS_SIGNALLED,
    EngineSignal,
    RewardResult,
    StepMetrics,
    StepStats,
    WeightSwap,
)
from rljob_core.records import Evaluated
from rljob_core.trajectory import group_of

_NAMED_PROMPTS = 3
"""Prompts of groups with equal rewards that a line names."""
_NAMED_SWAPS = 64
"""Swaps of weights that a line names: lines are kept as long as the job."""
_FAR_ENGINES = 4096
"""Engines at sites that are remembered: what one has generated may be trained long after it has ended."""
_GONE_ENGINES = 4096
"""Engines whose counters are remembered after they are gone."""


class RunningMetrics:
    """Sums over the whole job, and the statistics of the newest step."""

    def __init__(self) -> None:
        self._epoch = 0
        self._started = 0.0  # so that this coordinator's clock tells the job's seconds
        self._engine_tokens: dict[str, int] = {}
        self._gone_tokens: dict[str, int] = {}  # the same of engines that are gone
        self._tokens = 0
        self._mark = (0.0, 0)  # time and tokens at the last line: the rate is between two lines
        self._step: dict[str, Any] = {}  # of the newest step, by the fields of `StepMetrics`
        self._parts: dict[str, Mapping[str, float]] = {}  # by trajectory, since its group was planned
        self._swaps: dict[str, tuple[WeightSwap, ...]] = {}  # by engine, since the last line
        self._newest_swap: dict[str, float] = {}  # when it began, by engine
        self._site_of: dict[str, str] = {}  # by engine, of those at sites

    def start(self, now: float, *, epoch: int) -> None:
        """Start the clock of the coordinator of this writer epoch."""
        self._started, self._epoch = now, epoch
        self._mark = (now, self._tokens)

    def continue_from(self, seconds: float, tokens: int) -> None:
        """Count on from what the newest line of metrics says; the clock has been started."""
        self._started -= seconds
        self._tokens += tokens
        self._mark = (self._mark[0], self._tokens)

    def heard(self, signal: EngineSignal) -> None:
        """Take an engine's counter of tokens, which counts from its start, and its swaps of weights."""
        engine, total = signal.engine, signal.tokens
        if signal.site and engine not in self._site_of:
            self._site_of[engine] = signal.site
            if len(self._site_of) > _FAR_ENGINES:
                del self._site_of[next(iter(self._site_of))]
        known = self._newest_swap.get(engine, 0.0)
        new = tuple(swap for swap in signal.swaps[-SWAPS_SIGNALLED:] if swap.began > known)
        # What has no place in this line is said again, and has one in the next.
        if new and sum(map(len, self._swaps.values())) + len(new) <= _NAMED_SWAPS:
            self._newest_swap[engine] = max(swap.began for swap in new)
            self._swaps[engine] = self._swaps.get(engine, ()) + new
        # Of an engine that has worked for an earlier coordinator, that one has counted what it had generated.
        counted = total if signal.epoch < self._epoch else 0
        counted = self._gone_tokens.pop(engine, counted)
        self._tokens += max(0, total - self._engine_tokens.get(engine, counted))
        self._engine_tokens[engine] = total

    def engine_gone(self, engine: str) -> None:
        """Take note that an engine is removed; its tokens stay counted, also if it was only silent and comes back."""
        if (counted := self._engine_tokens.pop(engine, None)) is not None:
            self._gone_tokens[engine] = counted
            if len(self._gone_tokens) > _GONE_ENGINES:
                del self._gone_tokens[next(iter(self._gone_tokens))]
        self._newest_swap.pop(engine, None)

    def scored(self, result: RewardResult) -> None:
        """Take the parts of a reward that counts."""
        self._parts[result.trajectory] = result.parts

    def consumed(
        self,
        groups: Sequence[GroupState],
        *,
        step: int,
        open_groups: Collection[str],
        untrained: Sequence[Untrained],
    ) -> None:
        """Take the statistics of the groups that a step consumes, just before its commit.

        Args:
            groups: of the step.
            step: its number.
            open_groups: names of all groups that are open, those of the step among them.
            untrained: groups with rewards that were given up since the commit before.
        """
        siblings = [sibling for group in groups for sibling in group.siblings]
        replaced = [group.prompt for group in untrained if group.reason == UNIFORM]
        uniform = replaced + [g.prompt for g in groups if is_uniform([s.reward or 0.0 for s in g.siblings])]
        left = set(open_groups) - {group.id for group in groups}
        parts = [part for trajectory, part in self._parts.items() if group_of(trajectory) not in left]
        self._parts = {t: part for t, part in self._parts.items() if group_of(t) in left}
        trained = [s.reward for s in siblings if s.reward is not None]
        scored = [*trained, *(reward for group in untrained for reward in group.rewards)]
        lengths = [s.payload.response_tokens for s in siblings if s.payload is not None]
        staleness = [step - s.payload.span.min for s in siblings if s.payload is not None]
        self._step = {
            "reward_mean": fmean(scored),
            "reward_std": deviation(scored),
            "reward_mean_trained": fmean(trained),
            "reward_std_trained": deviation(trained),
            "response_tokens_mean": fmean(lengths),
            "groups_uniform": len(uniform) / (len(groups) + len(replaced)),
            "uniform_prompts": tuple(uniform[:_NAMED_PROMPTS]),
            "reward_parts": {
                name: fmean(part[name] for part in parts if name in part)
                for name in sorted({name for part in parts for name in part})
            },
            "trained_at": dict(
                Counter(self._site_of[s.engine] for s in siblings if s.engine in self._site_of)
            ),
            # Here too, so that a commit from a repeated proposal, which has no stats, has its staleness.
            "stats": StepStats(staleness_mean=fmean(staleness), staleness_max=max(staleness)),
        }

    def step(self, stats: StepStats) -> None:
        """Take the trainer's own statistics of the step that was just committed."""
        known = self._step["stats"]
        self._step["stats"] = replace(
            stats, staleness_mean=known.staleness_mean, staleness_max=known.staleness_max
        )

    def line(self, state: JobState, *, now: float) -> StepMetrics:
        """The job's line at time `now`, without statistics of a step or an evaluation."""
        since, before = self._mark
        rate = (self._tokens - before) / (now - since) if now > since else 0.0
        self._mark = (now, self._tokens)
        swaps, self._swaps = self._swaps, {}
        return StepMetrics(
            step=state.version,
            version=state.version,
            seconds=now - self._started,
            tokens_generated=self._tokens,
            tokens_per_second=rate,
            swaps=swaps,
            trajectories=dict(state.counts),
            aborted=dict(state.aborted),
            attempts_failed=dict(state.attempts_failed),
            trainer_attempt=state.trainer.attempt if state.trainer else 0,
            epoch=state.writer.count,
            writer=state.writer.number,
            finished=state.finished.outcome if state.finished else "",
            failure=state.finished.failure if state.finished else None,
        )

    def stepped(self, line: StepMetrics) -> StepMetrics:
        """The line with the statistics of the step that was just committed."""
        return replace(line, **self._step)

    @staticmethod
    def evaluated(record: Evaluated, line: StepMetrics, *, name: str, seconds: float) -> StepMetrics:
        """The line with an evaluation's scores, under the version that was evaluated, and for how long it was.

        Args:
            record: of the evaluation.
            line: the job's.
            name: of the first held-out set.
            seconds: that the evaluation took.
        """
        return replace(
            line,
            step=record.version,
            version=record.version,
            heldout_sampled=record.sampled,
            heldout_greedy=record.greedy,
            heldout_newest=record.newest,
            heldout_mixed=record.mixed,
            heldout_failed=record.failed,
            heldout_error=record.error,
            heldout_seconds=seconds,
            heldout_set=name if record.sets else "",
            heldout_samples=record.samples,
            heldout_answers=record.answers,
            heldout_sampled_ci95=record.sampled_ci95,
            heldout_greedy_ci95=record.greedy_ci95,
            heldout_pass_at=record.pass_at,
            heldout_sets=record.sets,
        )
