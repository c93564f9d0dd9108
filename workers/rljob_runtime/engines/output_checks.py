"""Checks an engine's responses against the requests, because an engine may be code that is not part of rljob.

Rollout workers check each response before they store it, and what is unfinished before another engine may continue it;
the engine contract (`rljob check-engine`) checks the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.ports import Completed, Progress
from rljob_core.trajectory import FinishReason

_HIGHEST_LOGPROB = 1e-3
"""Log-probabilities are at most 0; what a distribution in half precision makes of 1 may be rounded up so far."""
_FINISHED = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimits:
    """What a response must keep to.

    Attributes:
        max_tokens: of it, inherited ones included.
        vocabulary: number of token ids that the model has.
        oldest: version of the oldest weights that may have generated a token, unless it was inherited.
        newest: version of the newest weights that the engine was ever given.
        inherited: what it continues; None if it starts from the prompt.
    """

    max_tokens: int
    vocabulary: int
    oldest: int
    newest: int
    inherited: Progress | None = None


def output_fault(made: Completed | Progress, limits: OutputLimits) -> str:
    """What is wrong with a response, or with an unfinished one; empty if nothing is."""
    columns = {}
    for name, kinds in (("tokens", "iu"), ("logprobs", "fiu"), ("versions", "iu")):
        column = _column(getattr(made, name), kinds)
        if column is None:
            return f"its {name} are not a column of {'numbers' if name == 'logprobs' else 'whole numbers'}"
        columns[name] = column
    tokens, logprobs, versions = columns.values()
    if not len(tokens) == len(logprobs) == len(versions):
        return f"{len(tokens)} tokens have {len(logprobs)} log-probabilities and {len(versions)} versions"
    if not len(tokens):
        return "it has no tokens"
    if len(tokens) > limits.max_tokens:
        return f"it has {len(tokens)} tokens, where maxTokens is {limits.max_tokens}"
    if isinstance(made, Completed) and made.finish not in _FINISHED:
        return f"it ended by {str(made.finish)[:40]!r}, not by {' or '.join(_FINISHED)}"
    if (outside := _first((tokens < 0) | (tokens >= limits.vocabulary))) is not None:
        return f"token {outside} is {tokens[outside]}; the model's token ids are 0 to {limits.vocabulary - 1}"
    if (wrong := _first(~(_is_finite_when_stored(logprobs) & (logprobs <= _HIGHEST_LOGPROB)))) is not None:
        return (
            f"the log-probability of token {wrong} is {logprobs[wrong]:g}, not a finite float32 and at most 0"
        )
    return _fault_of_inherited(tokens, logprobs, versions, limits) or _fault_of_versions(versions, limits)


def _fault_of_inherited(
    tokens: NDArray[Any],
    logprobs: NDArray[Any],
    versions: NDArray[Any],
    limits: OutputLimits,
) -> str:
    inherited = limits.inherited
    if inherited is None:
        return ""
    for name, column, before in (
        ("tokens", tokens, inherited.tokens),
        ("log-probabilities", logprobs, inherited.logprobs),
        ("versions", versions, inherited.versions),
    ):
        if not np.array_equal(column[: len(before)], before):
            return f"the {name} of its first {len(before)} tokens are not those that it inherited"
    return ""


def _fault_of_versions(versions: NDArray[Any], limits: OutputLimits) -> str:
    begun = 0 if limits.inherited is None else len(limits.inherited.versions)
    own = versions[begun:]
    if (old := _first(own < limits.oldest)) is not None:
        return f"token {begun + old} is of version {own[old]}, where {limits.oldest} is the oldest allowed"
    if (new := _first(own > limits.newest)) is not None:
        return f"token {begun + new} is of version {own[new]}, where the engine was given none after {limits.newest}"
    if (drop := _first(own[1:] < own[:-1])) is not None:
        return f"token {begun + drop + 1} is of version {own[drop + 1]}, the token before it of {own[drop]}"
    return ""


def _column(values: object, kinds: str) -> NDArray[Any] | None:
    """Values as a one-dimensional array of these kinds of numbers; None if they are none."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        return None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in kinds):
        return None
    return array


def _is_finite_when_stored(logprobs: NDArray[Any]) -> NDArray[np.bool_]:
    """Which log-probabilities are still finite as float32, as which they are stored: −1e308 would be trained as −∞."""
    with np.errstate(over="ignore"):
        return np.isfinite(logprobs.astype(np.float32))


def _first(marks: NDArray[np.bool_]) -> int | None:
    """Where the first mark is; None if there is none."""
    return int(marks.argmax()) if marks.any() else None
