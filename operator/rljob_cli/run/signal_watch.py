"""Finds out whether a run teaches nothing, or what it should not.

Equal rewards in each group, answers that are cut, functions that say 0, rewards that do not rise, engines that sample
otherwise than declared.
Nothing in such a run fails, and it ends like any other: so `rljob run` warns early, and again at the end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_core.advantage import is_uniform
from rljob_core.messages import StepMetrics
from rljob_core.spec import TRUNCATION, RLJobSpec

EARLY_STEPS = 3
"""Steps after which a run is judged; a shorter run is judged by all of its steps."""
_SILENT_STEPS = 10
"""Steps, or all of a shorter job, after which a function that gave 0 to all answers is said: some apply seldom."""
_LEAST_STEPS, _FLAT_STEPS = 15, 60
"""Steps that tell a reward that rises from its noise, and after which one that does not is said."""
_CUT = 0.5
"""Share of answers that end at `sampling.maxTokens` from which on this is said."""
_CUT_ANSWERS = {
    "Train": "were scored as they stood",
    "Mask": "none of their tokens was trained on (spec.algorithm.truncated: Mask)",
    "Penalise": "lost spec.algorithm.truncationPenalty of their reward",
}
_OFF = 0.1
"""By how much the mean importance weight of fresh data may differ from 1. Engines and trainers that round differently
(bfloat16, quantised weights) stay within half of it."""


@dataclass(frozen=True, slots=True)
class NoSignal:
    """One reason why steps teach little, nothing, or the wrong thing.

    Attributes:
        reason: one word, which is said once.
        message: what it is, where to look, what to change.
        prompts: numbers of some prompts whose answers to look at.
        warns: something is to be changed; else it is good news.
    """

    reason: str
    message: str
    prompts: tuple[int, ...] = ()
    warns: bool = True

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def line(self) -> str:
        """As it is said to a user."""
        return f"warning: {self}" if self.warns else str(self)


class SignalWatch:
    """Tells what is new from what has been said of a run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, found: Sequence[NoSignal]) -> list[NoSignal]:
        """Those whose reason was not among what this was given before."""
        unsaid = [one for one in found if one.reason not in self._said]
        self._said.update(one.reason for one in unsaid)
        return unsaid


def judge(commits: Sequence[StepMetrics], spec: RLJobSpec) -> list[NoSignal]:
    """What is wrong with the newest steps; besides the sampling, nothing before there are `EARLY_STEPS`, or all steps.

    Emulated engines draw tokens at random, and emulated backends learn nothing: of their jobs nothing is said.

    Args:
        commits: lines of committed steps, in order.
        spec: of the job.
    """
    if "Emulated" in {spec.rollout.engine.name, spec.trainer.backend}:
        return []
    found = _sampling(commits, spec)
    if len(commits) < min(EARLY_STEPS, spec.steps):
        return found
    newest = commits[-EARLY_STEPS:]
    steps = f"steps {newest[0].version} to {newest[-1].version}"
    if all(line.groups_uniform == 1.0 for line in newest):
        found.append(_solved(commits) or _uniform(newest, steps))
    elif len(commits) >= max(_LEAST_STEPS, min(_FLAT_STEPS, spec.steps)):
        found += _flat(commits, spec)
    cut = [
        line.stats.truncated for line in newest if line.stats is not None and line.stats.truncated is not None
    ]
    if len(cut) == len(newest) and min(cut) >= _CUT:
        most = spec.rollout.sampling.max_tokens
        found.append(
            NoSignal(
                "AnswersCut",
                f"in {steps}, {sum(cut) / len(cut):.0%} of the answers ended because they had "
                f"{most} tokens (spec.rollout.sampling.maxTokens), and {_CUT_ANSWERS[spec.algorithm.truncated]}: raise "
                "it, or ask for shorter answers in spec.data.promptTemplate",
            )
        )
    if len(commits) >= min(_SILENT_STEPS, spec.steps):
        found += _silent_functions(commits, steps=f"steps 1 to {newest[-1].version}")
    return found


def _sampling(commits: Sequence[StepMetrics], spec: RLJobSpec) -> list[NoSignal]:
    """Whether the first step that trained nothing but answers of its own weights had to correct for something."""
    fresh = (line for line in commits if line.stats is not None and line.stats.staleness_max == 0)
    line = next(fresh, None)
    if line is None or line.stats is None or abs(line.stats.importance_mean - 1) <= _OFF:
        return []
    engine = spec.rollout.engine.name
    return [
        NoSignal(
            "SamplingDiffers",
            f"step {line.version} trained answers of its own weights, so that the importance weight should be 1, and "
            f"it is {line.stats.importance_mean:.3f} in the mean: the engine {engine} samples otherwise than "
            "spec.rollout.sampling says, or has other log-probabilities than the trainer; look at the server's own "
            "top_k, min_p and penalties, and at the dtype and quantization of both",
        )
    ]


def _flat(commits: Sequence[StepMetrics], spec: RLJobSpec) -> list[NoSignal]:
    """That the reward of the last third of the steps is not above that of the first by more than twice its error."""
    third = len(commits) // 3
    early, late = ([line.reward_mean or 0.0 for line in part] for part in (commits[:third], commits[-third:]))
    error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / third)
    before, now = statistics.fmean(early), statistics.fmean(late)
    if now - before > 2 * error:
        return []
    return [
        NoSignal(
            "NotRising",
            f"the mean reward of steps {commits[-third].version} to {commits[-1].version} is {now:.3f}, that of steps "
            f"{commits[0].version} to {commits[third - 1].version} was {before:.3f}, and chance alone changes it by "
            f"{2 * error:.3f}: raise spec.algorithm.learningRate ({spec.algorithm.learning_rate:g}) or spec.steps, or "
            "look at answers, and at what spec.reward.functions give for them",
        )
    ]


def unscored(evaluations: Sequence[StepMetrics]) -> list[NoSignal]:
    """That held-out answers have no score, if some of the newest evaluation do not.

    Args:
        evaluations: their lines, in order.
    """
    newest = evaluations[-1] if evaluations else None
    if newest is None or not newest.unscored:
        return []
    fails = any(score.sampled is None for score in newest.held_out.values())
    reason = "EvaluationFailed" if fails else "AnswersUnscored"
    return [NoSignal(reason, f"at version {newest.version}, {newest.unscored}")]


def _solved(commits: Sequence[StepMetrics]) -> NoSignal | None:
    """The good news that the newest steps have nothing left to teach; None if it is not that.

    Earlier steps taught, all answers of the newest ones had one reward, and no step's mean was better. A step of the
    same mean whose answers differed had better answers than these.
    """
    best, first = commits[-1].reward_mean, len(commits)
    while first and (line := commits[first - 1]).groups_uniform == 1.0 and not line.reward_std:
        if not is_uniform([line.reward_mean or 0.0, best or 0.0]):
            break
        first -= 1
    earlier = commits[:first]
    if best is None or len(commits) - first < EARLY_STEPS:
        return None
    if all(line.groups_uniform in {None, 1.0} for line in earlier):
        return None  # nothing was ever learned
    for line in earlier:
        mean = line.reward_mean
        if mean is not None and (line.reward_std if is_uniform([mean, best]) else mean > best):
            return None
    return NoSignal(
        "Solved",
        f"since step {commits[first].version} all answers have the same best reward ({best:g}); more steps teach "
        "nothing",
        warns=False,
    )


def _uniform(newest: Sequence[StepMetrics], steps: str) -> NoSignal:
    reward = newest[-1].reward_mean or 0.0
    prompts = newest[-1].uniform_prompts
    what = (
        f"all were {reward:g}"
        if not any(line.reward_std for line in newest)
        else "each group had one of its own"
    )
    if reward > 0:
        remedy = "the task is too easy for this model, or spec.reward.functions do not tell answers apart"
    elif reward < 0:
        remedy = (
            "look at answers to these prompts: whether the model can give any that avoids the penalties of "
            "spec.reward.functions"
        )
    else:
        remedy = (
            "look at answers to these prompts: whether the model can give any that is right, in the form that "
            "spec.reward.functions read (if they give penalties only, 0 is the best, and the task is too easy)"
        )
    return NoSignal(
        "NoSignal",
        f"in {steps}, the rewards of each group's answers were equal ({what}), so that nothing was learned; for "
        f"instance prompts {', '.join(map(str, prompts))}: {remedy}",
        prompts,
    )


def _silent_functions(commits: Sequence[StepMetrics], *, steps: str) -> list[NoSignal]:
    """Functions that have given 0 to every answer, beside others that have not."""
    known = [line.reward_parts for line in commits if line.reward_parts]
    names = {name for parts in known for name in parts} - {TRUNCATION}
    silent = sorted(name for name in names if not any(parts.get(name) for parts in known))
    if not silent or len(silent) == len(names):
        return []  # if all of them are silent, all groups are equal
    return [
        NoSignal(
            "FunctionSilent",
            f"in {steps}, {', '.join(silent)} gave 0 in the mean of every step (a penalty that never applied gives 0, "
            "too): look whether it finds in the answers what it reads",
        )
    ]
