"""Runs in a process of the reward pool: scores chunks of answers, each call under a limit that nothing escapes.

The limit is the process's own interval timer with the signal's default action: when a call runs too long, the
kernel ends the process, whatever the function is doing (a loop in C, a lock, an `except` that catches all). The
pool sees the signal in the exit code and, in shared memory, which answer it was.
"""

from __future__ import annotations

import signal
import time
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field

from rljob_core.config import JobConfig
from rljob_core.errors import RewardFailed, SpecError
from rljob_runtime.data.prompts import PromptSource, open_prompts
from rljob_runtime.process.lifeline import die_with_parent
from rljob_runtime.rewards.registry import NamedReward, resolve, score

#: Seconds after which a chunk returns with what is done; the rest goes into other chunks.
SLICE = 0.1


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """An answer to score.

    Attributes:
        prompt: index of its item.
        held_out: whether that index is of the evaluation's data.
        completion: the response as text.
    """

    prompt: int
    held_out: bool
    completion: str


@dataclass(frozen=True, slots=True)
class ScoringOutcome:
    """The score of an answer and what it is the sum of; or `error`, a reason and its detail."""

    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Data:
    prompts: PromptSource
    functions: list[NamedReward]


@dataclass(frozen=True, slots=True)
class _Loaded:
    training: _Data
    held_out: _Data
    limit: float
    progress: MutableSequence[int]


_loaded: _Loaded | SpecError | None = None


def load(config: str, progress: MutableSequence[int]) -> None:
    """Make a new process of the pool ready: data and functions. A wrong spec is kept for `check` to return.

    Args:
        config: the `JobConfig` as JSON.
        progress: shared by the pool; element s is the answer that the chunk in slot s has come to.
    """
    global _loaded  # noqa: PLW0603  one process of the pool, one job
    die_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    job = JobConfig.model_validate_json(config)
    names = job.spec.reward.functions
    try:
        data = [_Data(prompts, resolve(names, prompts)) for prompts in open_prompts(job)]
    except SpecError as error:
        _loaded = error
        return
    _loaded = _Loaded(data[0], data[1], job.spec.reward.timeout_seconds, progress)


def check() -> tuple[str, str] | None:
    """Path and message of what is wrong with the spec, if anything."""
    return (_loaded.path, _loaded.message) if isinstance(_loaded, SpecError) else None


def score_chunk(slot: int, jobs: Sequence[ScoringJob]) -> list[ScoringOutcome]:
    """Outcomes of the first jobs: at least one, and no new one is begun after `SLICE` seconds."""
    if not isinstance(_loaded, _Loaded):
        raise RewardFailed(f"the worker has nothing to score with: {_loaded}")
    begin = time.monotonic()
    outcomes = list[ScoringOutcome]()
    for position, job in enumerate(jobs):
        if outcomes and time.monotonic() - begin > SLICE:
            break
        _loaded.progress[slot] = position
        outcomes.append(_score(_loaded.held_out if job.held_out else _loaded.training, job, _loaded.limit))
    return outcomes


def _score(data: _Data, job: ScoringJob, limit: float) -> ScoringOutcome:
    parts = dict[str, float]()
    try:
        item = data.prompts.item(job.prompt)
        for name, function in data.functions:
            signal.setitimer(signal.ITIMER_REAL, limit)
            try:
                parts[name] = score(name, function, completion=job.completion, item=item)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except RewardFailed as error:
        return ScoringOutcome(error=f"RewardRaised: {error}")
    except Exception as error:  # the data's own code may raise anything
        return ScoringOutcome(error=f"RewardRaised: item {job.prompt}: {type(error).__name__}: {error}")
    return ScoringOutcome(sum(parts.values()), parts)
