"""From what a run recorded to the engines, the trainer and the lengths of a simulation, and to its own figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rljob_cli.simulate.recorded_run import RecordedRun, RecordedStep
from rljob_core.messages import EngineProfile, EngineSignal
from rljob_core.records import Generated
from rljob_core.spec import RLJob, SiteLinkSpec
from rljob_core.trajectory import group_of, prompt_of_group, sibling_of
from rljob_sim import EngineKind, MeasuredLengths, TrainerProfile

_TRUSTED = 5.0
"""A slope is taken for one if it is so many times its standard error."""
_FEWEST = 5
"""Steps from which a slope can be told."""


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """What a run measured.

    Attributes:
        path: the run's folder.
        job: as it was run last.
        links: of its sites, by site.
        kinds: the engines of each pool, and how many of them were heard of.
        trainer: of the steps that count.
        lengths: of the answers that the newest steps trained on.
        prompt_tokens: of their prompts, on average.
        reward_seconds: from an answer's end until its score is read; 0 if no decisions are recorded.
        steps: the newest ones, without the first of these: those in which the pipeline of a simulation fills.
    """

    path: Path
    job: RLJob
    links: dict[str, SiteLinkSpec]
    kinds: dict[str, EngineKind]
    trainer: TrainerProfile
    lengths: MeasuredLengths
    prompt_tokens: int
    reward_seconds: float
    steps: tuple[RecordedStep, ...]

    @classmethod
    def of(cls, run: RecordedRun, *, steps: int, skip: int | None = None) -> MeasuredJob:
        """What a run measured in its newest steps.

        Args:
            run: the run.
            steps: so many are looked at, or all if there are fewer. A simulation of as many has the same groups.
            skip: of these, the first that figures leave out; None for a third of them, at most 3. At least one step
                is left that has a duration.
        """
        newest = run.steps[-steps:]
        counted = newest[min(3, len(newest) // 3) if skip is None else skip :]
        if not _timed(counted):
            counted = run.steps[max(i for i, step in enumerate(run.steps) if _timed([step])) :]
        looked_at = {step.version: step for step in (*newest, *counted)}.values()
        answers = [answer for step in looked_at for answer in step.answers]
        rewarded = run.decisions.reward_seconds if run.decisions is not None else []
        return cls(
            path=run.path,
            job=run.job,
            links=run.links,
            kinds=_kinds(run.engines),
            trainer=_trainer(counted),
            lengths=_lengths(answers),
            prompt_tokens=max(1, round(fmean(a.tokens - a.response_tokens for a in answers))),
            reward_seconds=fmean(rewarded) if rewarded else 0.0,
            steps=tuple(counted),
        )

    @property
    def seconds_per_step(self) -> float:
        """From commit to commit."""
        return fmean(step.seconds or 0.0 for step in _timed(self.steps))

    def figures(self) -> dict[str, Any]:
        """The run's own figures, under the names of those of a simulated one."""
        timed = _timed(self.steps)
        seconds = sum(step.seconds or 0.0 for step in timed)
        staleness = [step.version - 1 - answer.span.min for step in self.steps for answer in step.answers]
        return {
            "steps": self.steps[-1].version,
            "seconds_per_step": self.seconds_per_step,
            "tokens_per_second": sum(step.tokens for step in timed) / seconds,
            "staleness_mean": fmean(staleness),
            "staleness_max": max(staleness),
            "trainer_busy": sum(step.stats.seconds_training for step in timed) / seconds,
        }


def _timed(steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Those of which both the duration and the answers are known."""
    return [step for step in steps if step.seconds and step.answers]


def _lengths(answers: Sequence[Generated]) -> MeasuredLengths:
    groups: dict[str, list[Generated]] = defaultdict(list)
    for answer in answers:
        groups[group_of(answer.trajectory)].append(answer)
    return MeasuredLengths(
        tuple(
            tuple(
                max(answer.response_tokens, 1)
                for answer in sorted(groups[group], key=lambda answer: sibling_of(answer.trajectory))
            )
            for group in sorted(groups, key=prompt_of_group)
        )
    )


def _kinds(engines: Sequence[EngineSignal]) -> dict[str, EngineKind]:
    pools: dict[str, list[EngineSignal]] = defaultdict(list)
    for signal in engines:
        pools[signal.pool].append(signal)
    return {
        pool: EngineKind(
            name=pool,
            count=len(signals),
            slots=signals[-1].slots,
            profile=_mean_profile([signal.profile for signal in signals if signal.profile is not None]),
            kv_tokens=signals[-1].kv_tokens,
        )
        for pool, signals in pools.items()
    }


def _mean_profile(profiles: Sequence[EngineProfile]) -> EngineProfile:
    """The engines of a pool are alike: what one of them says deviates by what its machine did besides."""
    return EngineProfile(
        seconds=fmean(profile.seconds for profile in profiles),
        seconds_per_slot=fmean(profile.seconds_per_slot for profile in profiles),
        seconds_per_context_token=fmean(profile.seconds_per_context_token for profile in profiles),
        steps=sum(profile.steps for profile in profiles),
    )


def _trainer(steps: Sequence[RecordedStep]) -> TrainerProfile:
    """A straight line through the steps' durations over their tokens.

    Steps of a job have about as many tokens as each other. Unless their durations show clearly how much of them does
    not depend on tokens, all of it counts as such that does.
    """
    known = [step for step in steps if step.answers]
    tokens = [float(step.tokens) for step in known]
    seconds = [step.stats.seconds_training for step in known]
    slope, fixed = sum(seconds) / sum(tokens), 0.0
    if (line := _line(tokens, seconds)) is not None:
        slope, fixed = line
    return TrainerProfile(
        seconds_per_token=slope,
        step_seconds=fixed,
        publish_seconds=fmean(step.stats.seconds_publishing for step in known),
    )


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """Slope and intercept of the line through points; None if the points hardly tell them, or one is negative."""
    if len(x) < _FEWEST:
        return None
    mean_x, mean_y = fmean(x), fmean(y)
    spread = sum((one - mean_x) ** 2 for one in x)
    if not spread:
        return None
    slope = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True)) / spread
    fixed = mean_y - slope * mean_x
    residual = sum((other - fixed - slope * one) ** 2 for one, other in zip(x, y, strict=True))
    error = (residual / (len(x) - 2) / spread) ** 0.5
    return (slope, fixed) if slope > _TRUSTED * error and fixed >= 0 else None
