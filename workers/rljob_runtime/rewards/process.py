"""Runs in a process of the reward pool: scores chunks of answers, and says in shared memory what it is doing.

The pool reads there since when a function has been running, and kills the process if that is too long. Nothing that a
function does in its own process can prevent it: ignore signals, change timers, hold the interpreter's lock in C.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_core.errors import RewardFailed, RewardOutOfRange, SpecError
from rljob_core.failures import Failure, Reason
from rljob_core.words import error_in_words, own_traceback
from rljob_runtime.data.prompts import ItemSource, open_items
from rljob_runtime.process.lifeline import die_with_parent
from rljob_runtime.rewards.messages import ItemsSetup, ScoringJob, ScoringOutcome, ScoringSetup
from rljob_runtime.rewards.registry import (
    REWARDS,
    NamedReward,
    number_of,
    raised_in_words,
    resolve,
    score,
    value_of,
)

MADE_UP = "42"
"""An answer to anything."""
#: Seconds after which a chunk returns with what is done; the rest goes into other chunks.
SLICE = 0.1
_STDERR = 2
_SHOWN_TRACEBACKS = 3
"""Different tracebacks of user code that one process prints: a function that raises may raise for each answer."""


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


class _SentItems:
    """An `ItemSource` of data whose items come with the answers: it has the first one, for what all of them have."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._first = first

    def item(self, index: int) -> dict[str, Any]:
        """Return the first item."""
        if index:
            raise IndexError(f"item {index} comes with its answers")
        return self._first


@dataclass(frozen=True, slots=True)
class _ItemsWithRewards:
    items: ItemSource
    functions: list[NamedReward] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Loaded:
    training: _ItemsWithRewards
    held_out: _ItemsWithRewards
    calls: Sequence[CallInProgress]


_loaded: _Loaded | SpecError | None = None
_shown = set[str]()
"""The tracebacks that this process has printed."""


def load(
    setup: ScoringSetup, calls: Sequence[CallInProgress], *, loading: Callable[[str], None] | None = None
) -> None:
    """Make a new process of the pool ready: items and functions. A wrong spec is kept for `check` to return.

    Args:
        setup: what the job needs.
        calls: shared by the pool, one for each slot.
        loading: called with the name of each function before it is loaded.
    """
    global _loaded  # noqa: PLW0603  one process of the pool, one job
    die_with_parent()
    try:
        training, held_out = (
            _data(items, setup.functions, loading) for items in (setup.training, setup.held_out)
        )
    except SpecError as error:
        _loaded = error
        return
    _loaded = _Loaded(training, held_out, calls)


def _data(
    setup: ItemsSetup, functions: Sequence[str], loading: Callable[[str], None] | None
) -> _ItemsWithRewards:
    if setup.generated is not None:
        items: ItemSource = open_items(setup.generated, setup.path)
    else:
        items = _SentItems(setup.first or {})
    return _ItemsWithRewards(items, resolve(functions, _ItemsWithRewards(items), loading=loading))


def check() -> tuple[str, str] | None:
    """Path and message of what is wrong with the spec, if anything."""
    return (_loaded.path, _loaded.message) if isinstance(_loaded, SpecError) else None


def try_out(calling: Callable[[str], None]) -> Iterator[tuple[str, RewardFailed, bool]]:
    """Call each function of the user's once, on a made-up answer: the right one, if the first item has one.

    Args:
        calling: called with the name of each function before it is called.

    Yields:
        The names of those that fail, how, and whether what they return is no score, of whatever answer.
    """
    if not isinstance(_loaded, _Loaded):
        return
    item = _loaded.training.items.item(0)
    answer = item.get("answer")
    completion = MADE_UP if answer is None else str(answer)
    for name, function in _loaded.training.functions:
        if REWARDS.built_in(name) is not None:
            continue
        calling(name)
        try:
            value = value_of(name, function, completion, dict(item))
        except RewardFailed as error:
            yield name, error, False
            continue
        try:
            number_of(name, value)
        except RewardFailed as error:
            yield name, error, True


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


def _failed(reason: Reason, detail: str) -> ScoringOutcome:
    return ScoringOutcome(failure=Failure(reason, detail))


def _score(data: _ItemsWithRewards, job: ScoringJob, call: CallInProgress) -> ScoringOutcome:
    parts = dict[str, float]()
    try:
        item = data.items.item(job.prompt) if job.item is None else job.item
    except Exception as error:  # the data's own code may raise anything
        _show(f"item {job.prompt}", error)
        return _failed(Reason.REWARD_RAISED, f"item {job.prompt}: {error_in_words(error)}")
    for position, (name, function) in enumerate(data.functions):
        call.function, call.began = position, time.monotonic()
        try:
            parts[name] = score(
                name, function, completion=job.completion, item=item, finish_reason=job.finish.value
            )
        except RewardOutOfRange as error:
            return _failed(Reason.REWARD_OUT_OF_RANGE, str(error))
        except RewardFailed as error:
            if error.__cause__ is not None:
                _show(f"{name}, item {job.prompt}", error.__cause__)
            return _failed(Reason.REWARD_RAISED, str(error))
        except KeyboardInterrupt as error:  # the function's own: this process ignores SIGINT
            _show(f"{name}, item {job.prompt}", error)
            return _failed(Reason.REWARD_RAISED, f"{name} raised {raised_in_words(function, error)}")
        finally:
            if os.getpid() != call.process:  # a child that the function forked: only its parent answers
                os._exit(0)
            call.began = 0.0
    return ScoringOutcome(sum(parts.values()), parts)


def _show(what: str, error: BaseException) -> None:
    """Print the traceback of user code, from its own first line on, to the log of the process that started the pool.

    The code may have replaced or closed what Python prints to: it gets no second error for its first.
    """
    if len(_shown) >= _SHOWN_TRACEBACKS:
        return
    with contextlib.suppress(Exception):
        trace = own_traceback(error)
        if trace not in _shown:
            _shown.add(trace)
            os.write(_STDERR, f"{what}:\n{trace}".encode(errors="replace"))
