"""Runs in a process of the reward pool: scores chunks of answers, and says in shared memory what it is doing.

The pool reads there since when a function has been running, and kills the process if that is too long. Nothing that a
function does in its own process can prevent it: ignore signals, change timers, hold the interpreter's lock in C.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_core.config import JobConfig
from rljob_core.errors import RewardFailed, RewardOutOfRange, SpecError
from rljob_core.words import error_in_words
from rljob_runtime.data.prompts import PromptSource, open_prompts
from rljob_runtime.process.lifeline import die_with_parent
from rljob_runtime.rewards.registry import NamedReward, raised_in_words, resolve, score

#: Seconds after which a chunk returns with what is done; the rest goes into other chunks.
SLICE = 0.1


class CallInProgress(ctypes.Structure):
    """What a process of the pool is doing, in memory that it shares with the role.

    Attributes:
        process: its id.
        answer: position in its chunk of the answer that it has come to.
        function: position in `spec.reward.functions` of the one that it calls.
        began: when that call began, on the monotonic clock; 0 while none runs.
    """

    _fields_ = [
        ("process", ctypes.c_int),
        ("answer", ctypes.c_int),
        ("function", ctypes.c_int),
        ("began", ctypes.c_double),
    ]
    process: int
    answer: int
    function: int
    began: float


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
    calls: Sequence[CallInProgress]


_loaded: _Loaded | SpecError | None = None


def load(config: str, calls: Sequence[CallInProgress]) -> None:
    """Make a new process of the pool ready: data and functions. A wrong spec is kept for `check` to return.

    Args:
        config: the `JobConfig` as JSON.
        calls: shared by the pool, one for each slot.
    """
    global _loaded  # noqa: PLW0603  one process of the pool, one job
    die_with_parent()
    job = JobConfig.model_validate_json(config)
    names = job.spec.reward.functions
    try:
        data = [_Data(prompts, resolve(names, prompts)) for prompts in open_prompts(job)]
    except SpecError as error:
        _loaded = error
        return
    _loaded = _Loaded(data[0], data[1], calls)


def check() -> tuple[str, str] | None:
    """Path and message of what is wrong with the spec, if anything."""
    return (_loaded.path, _loaded.message) if isinstance(_loaded, SpecError) else None


def score_chunk(slot: int, jobs: Sequence[ScoringJob]) -> list[ScoringOutcome]:
    """Outcomes of the first jobs: at least one, and no new one is begun after `SLICE` seconds."""
    if not isinstance(_loaded, _Loaded):
        raise RewardFailed(f"the worker has nothing to score with: {_loaded}")
    begin = time.monotonic()
    outcomes = list[ScoringOutcome]()
    call = _loaded.calls[slot]
    call.process = os.getpid()
    for position, job in enumerate(jobs):
        if outcomes and time.monotonic() - begin > SLICE:
            break
        call.answer = position
        outcomes.append(_score(_loaded.held_out if job.held_out else _loaded.training, job, call))
    return outcomes


def _score(data: _Data, job: ScoringJob, call: CallInProgress) -> ScoringOutcome:
    parts = dict[str, float]()
    try:
        item = data.prompts.item(job.prompt)
    except Exception as error:  # the data's own code may raise anything
        return ScoringOutcome(error=f"RewardRaised: item {job.prompt}: {error_in_words(error)}")
    for position, (name, function) in enumerate(data.functions):
        call.function, call.began = position, time.monotonic()
        try:
            parts[name] = score(name, function, completion=job.completion, item=item)
        except RewardOutOfRange as error:
            return ScoringOutcome(error=f"RewardOutOfRange: {error}")
        except RewardFailed as error:
            return ScoringOutcome(error=f"RewardRaised: {error}")
        except KeyboardInterrupt as error:  # the function's own: this process ignores SIGINT
            return ScoringOutcome(error=f"RewardRaised: {name} raised {raised_in_words(function, error)}")
        finally:
            if os.getpid() != call.process:  # a child that the function forked: only its parent answers
                os._exit(0)
            call.began = 0.0
    return ScoringOutcome(sum(parts.values()), parts)
