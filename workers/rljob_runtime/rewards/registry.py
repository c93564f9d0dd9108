"""The rewards by the names that a manifest uses.

| name | score |
|---|---|
| `exact_match` | 1 if the completion and the item's `answer`, both stripped of white space, are equal, else 0 |
| `verifier` | the data set's own score (reasoning-gym) |
| `math_verify` | 1 if both are the same mathematical value (`math-verify`), else 0 |
| `python_tests` | 1 if the item's `tests` pass with the completion's code, in a sandbox, else 0 |
| `package.module:function` | what the function returns, called with what it takes of `ARGUMENTS` by keyword |

Any other name is one that an installed distribution offers (`rljob_runtime.plugins`).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Protocol

from rljob_core.errors import RewardFailed, RewardOutOfRange, SpecError
from rljob_core.ports import LARGEST_SCORE, Reward
from rljob_core.ports.reward import ARGUMENTS
from rljob_core.spec.data import FIELDS_OF_REWARDS
from rljob_core.words import error_in_words, place_in_words
from rljob_runtime.data.prompts import ItemSource
from rljob_runtime.plugins import Registry, imported

NamedReward = tuple[str, Reward]


class Data(Protocol):
    """What is scored: a `PromptSource`, or its items alone."""

    @property
    def items(self) -> ItemSource:
        """The items."""


_MUST_TAKE = f"it must take the keyword arguments completion and item, or those that it needs of {', '.join(ARGUMENTS)}"
ERROR_CHARACTERS = 400
"""Length to which the text of an error is cut where it enters, so that the whole of a failure's detail is kept."""


def exact_match(*, completion: str, item: Mapping[str, Any]) -> float:
    """1 if the completion equals the item's `answer`, apart from white space around either; else 0."""
    return float(completion.strip() == str(item["answer"]).strip())


def resolve(
    functions: Sequence[str], source: Data, *, loading: Callable[[str], None] | None = None
) -> list[NamedReward]:
    """The reward functions that `spec.reward.functions` names, for items of `source`.

    Args:
        functions: the names.
        source: what is scored.
        loading: called with each name before what it names is loaded.

    Raises:
        SpecError: a name is unknown, offered or given twice, does not load, cannot be called with `ARGUMENTS`, or needs
            what the data has not.
    """
    resolved = list[NamedReward]()
    for position, name in enumerate(functions):
        path = f"spec.reward.functions[{position}]"
        if name in functions[:position]:
            raise SpecError(path, f"{name} is listed twice: remove one")
        if loading is not None:
            loading(name)
        if ":" in name:
            resolved.append((name, imported(name, "function", _callable, field=path)))
        else:
            resolved.append((name, REWARDS.find(name, field=path)(source, path)))
    return resolved


def score(
    name: str, function: Reward, *, completion: str, item: Mapping[str, Any], finish_reason: str = "stop"
) -> float:
    """One function's score.

    Raises:
        RewardFailed: it raised anything (also `SystemExit`), or returned no number.
        RewardOutOfRange: the number is not finite, or larger than `LARGEST_SCORE`.
        KeyboardInterrupt: somebody interrupts this process, or the function says so.
    """
    return number_of(name, value_of(name, function, completion, item, finish_reason))


def value_of(
    name: str, function: Reward, completion: str, item: Mapping[str, Any], finish_reason: str = "stop"
) -> Any:
    """What one function returns; of an `async def`, what its coroutine does.

    Raises:
        RewardFailed: it raised anything (also `SystemExit`).
        KeyboardInterrupt: somebody interrupts this process, or the function says so.
    """
    given = dict(zip(ARGUMENTS, (completion, item, finish_reason, finish_reason == "length"), strict=True))
    called: Callable[..., Any] = function
    taken = {argument: given[argument] for argument in _taken(called)}
    try:
        value = called(**taken)
        return _finished(value) if inspect.isawaitable(value) else value
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RewardFailed(f"{name} raised {raised_in_words(function, error)}") from error


def number_of(name: str, value: Any) -> float:
    """What a function has returned, as a score.

    Raises:
        RewardFailed: it is no number.
        RewardOutOfRange: the number is not finite, or larger than `LARGEST_SCORE`.
    """
    try:
        if getattr(value, "shape", None) == ():  # a scalar of NumPy, torch or JAX: also a bool
            value = value.item()
        number = float(value) if isinstance(value, Real | Decimal) else None
    except OverflowError:
        number = math.inf
    except Exception as error:
        raise RewardFailed(
            f"{name} returned something that is not a number: {error_in_words(error)}"
        ) from error
    if number is None:
        raise RewardFailed(f"{name} returned {type(value).__name__}, not a number")
    if not abs(number) <= LARGEST_SCORE:
        raise RewardOutOfRange(
            f"{name} returned {number:g}; a score lies between {-LARGEST_SCORE:g} and {LARGEST_SCORE:g}"
        )
    return number


def _taken(function: Callable[..., Any]) -> tuple[str, ...]:
    """The `ARGUMENTS` that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return ARGUMENTS
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL}
    return tuple(argument for argument in ARGUMENTS if argument in names)


def _finished(value: Awaitable[Any]) -> Any:
    """The result of a coroutine. All of a thread's run on one loop, so that what they keep of it stays usable."""

    async def result() -> Any:
        return await value

    if (runner := getattr(_thread, "runner", None)) is None:
        runner = _thread.runner = asyncio.Runner()
    return runner.run(result())


_thread = threading.local()


def raised_in_words(function: Reward, error: BaseException) -> str:
    """An error that a function raised, and where in the function's file."""
    words = error_in_words(error)[:ERROR_CHARACTERS]
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = place_in_words(error, code.co_filename) if code is not None else ""
    return f"{words} ({place})" if place else words


def _exact_match(source: Data, path: str) -> Reward:
    _require_field(source, path, "exact_match", "compares with")
    return exact_match


def _verifier(source: Data, path: str) -> Reward:
    verify: Reward | None = getattr(source.items, "verify", None)
    if verify is None:
        raise SpecError(path, "only reasoning-gym's tasks have a verifier of their own: write exact_match")
    return verify


def _math_verify(source: Data, path: str) -> Reward:
    _require_field(source, path, "math_verify", "compares with")
    # SymPy takes seconds to import.
    from math_verify import parse, verify

    def math_verify(*, completion: str, item: Mapping[str, Any]) -> float:
        """1 if the completion's last mathematical expression equals the item's `answer`, else 0.

        Raises:
            ValueError: the answer is no mathematical expression.
        """
        # Their own limits use the process's alarm; the reward worker has a limit already.
        answer = str(item["answer"])
        gold = parse(answer, parsing_timeout=None) or parse(f"${answer}$", parsing_timeout=None)
        if not gold:
            raise ValueError(f"the item's answer {answer!r} is not a mathematical expression")
        return float(verify(gold, parse(completion, parsing_timeout=None), timeout_seconds=None))

    return math_verify


def _python_tests(source: Data, path: str) -> Reward:
    from rljob_runtime.rewards.python_tests import python_tests
    from rljob_runtime.sandbox import LocalSandbox, SandboxUnavailable

    _require_field(source, path, "python_tests", "runs")
    try:
        return python_tests(LocalSandbox())
    except SandboxUnavailable as error:
        raise SpecError(path, f"python_tests runs code in a sandbox, and there is none: {error}") from error


def _installed(made: object) -> ForData:
    reward = _callable(made)
    return lambda source, path: reward  # noqa: ARG005  it takes any data


ForData = Callable[[Data, str], Reward]
"""The reward for items of some data; raises SpecError for the field of that path if the data cannot serve it."""

REWARDS = Registry[ForData](
    "reward",
    "rljob.rewards",
    {
        "exact_match": _exact_match,
        "verifier": _verifier,
        "math_verify": _math_verify,
        "python_tests": _python_tests,
    },
    _installed,
    otherwise="package.module:function",
)


def _require_field(source: Data, path: str, name: str, does: str) -> None:
    field = FIELDS_OF_REWARDS[name]
    item = source.items.item(0)
    if field not in item:
        raise SpecError(path, f"{name} {does} the item's field `{field}`; items have {', '.join(item)}")


def _callable(made: Any) -> Reward:
    """It, as a reward.

    Raises:
        TypeError: it cannot be called with `ARGUMENTS`.
    """
    if not callable(made):
        raise TypeError(f"it is not a function, but {type(made).__name__}")
    reward: Reward = made
    try:
        inspect.signature(made).bind(**dict.fromkeys(_taken(made)))
    except (TypeError, ValueError) as error:  # the latter of what is written in C
        hint = (
            "; it is called with one answer, never with a list of them" if "completions" in str(error) else ""
        )
        raise TypeError(f"{_MUST_TAKE}: {error}{hint}") from error
    if not _taken(made):
        raise TypeError(f"{_MUST_TAKE}: it takes none of them")
    return reward
