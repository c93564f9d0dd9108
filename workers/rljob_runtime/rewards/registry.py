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
from rljob_core.ports.reward import ARGUMENTS, GROUP_ARGUMENTS, GroupReward
from rljob_core.spec.data import FIELDS_OF_REWARDS
from rljob_core.words import error_in_words, place_in_words
from rljob_runtime.data.prompts import ItemSource
from rljob_runtime.plugins import Registry, imported

AnyReward = Reward | GroupReward
NamedReward = tuple[str, AnyReward]


class Data(Protocol):
    """What is scored: a `PromptSource`, or its items alone."""

    @property
    def items(self) -> ItemSource:
        """The items."""


ERROR_CHARACTERS = 400
"""Length to which the text of an error is cut where it enters, so that the whole of a failure's detail is kept."""


def exact_match(*, completion: str, item: Mapping[str, Any]) -> float:
    """1 if the completion equals the item's `answer`, apart from white space around either; else 0."""
    return float(completion.strip() == str(item["answer"]).strip())


def resolve(
    functions: Sequence[str],
    source: Data,
    *,
    per_group: Sequence[str] = (),
    loading: Callable[[str], None] | None = None,
) -> list[NamedReward]:
    """The reward functions that `spec.reward.functions` names, for items of `source`.

    Args:
        functions: the names.
        source: what is scored.
        per_group: those of them that score a whole group.
        loading: called with each name before what it names is loaded.

    Raises:
        SpecError: a name is unknown, offered or given twice, does not load, cannot be called with `ARGUMENTS` (or
            `GROUP_ARGUMENTS`), or needs what the data has not.
    """
    resolved = list[NamedReward]()
    for position, name in enumerate(functions):
        path = f"spec.reward.functions[{position}]"
        if name in functions[:position]:
            raise SpecError(path, f"{name} is listed twice: remove one")
        if loading is not None:
            loading(name)
        if ":" in name:
            accepted: Callable[[Any], AnyReward] = _group_callable if name in per_group else _callable
            resolved.append((name, imported(name, "function", accepted, field=path)))
        else:
            resolved.append((name, REWARDS.find(name, field=path)(source, path)))
    return resolved


def score(
    name: str,
    function: Callable[..., Any],
    *,
    completion: str,
    item: Mapping[str, Any],
    finish_reason: str = "stop",
) -> float:
    """One function's score.

    Raises:
        RewardFailed: it raised anything (also `SystemExit`), or returned no number.
        RewardOutOfRange: the number is not finite, or larger than `LARGEST_SCORE`.
        KeyboardInterrupt: somebody interrupts this process, or the function says so.
    """
    return number_of(name, value_of(name, function, given(completion, item, finish_reason)))


def given(completion: str, item: Mapping[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    """`ARGUMENTS` of one answer."""
    return dict(zip(ARGUMENTS, (completion, item, finish_reason, finish_reason == "length"), strict=True))


def given_group(
    completions: Sequence[str], item: Mapping[str, Any], finish_reasons: Sequence[str]
) -> dict[str, Any]:
    """`GROUP_ARGUMENTS` of a group."""
    truncated = [reason == "length" for reason in finish_reasons]
    return dict(zip(GROUP_ARGUMENTS, (list(completions), item, list(finish_reasons), truncated), strict=True))


def value_of(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What one function returns for those of the arguments that it takes; of an `async def`, what its coroutine does.

    Raises:
        RewardFailed: it raised anything (also `SystemExit`).
        KeyboardInterrupt: somebody interrupts this process, or the function says so.
    """
    taken = {argument: arguments[argument] for argument in _taken(function, tuple(arguments))}
    try:
        value = function(**taken)
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


def numbers_of(name: str, value: Any, answers: int) -> list[float]:
    """What a function has returned for a group, as its scores: a list, tuple, or array of one dimension.

    Raises:
        RewardFailed: it is not one number for each answer.
        RewardOutOfRange: one of the numbers is not finite, or larger than `LARGEST_SCORE`.
    """
    try:
        if getattr(value, "shape", None):  # an array of NumPy, torch or JAX
            value = value.tolist()
    except Exception as error:
        raise RewardFailed(
            f"{name} returned an array that cannot be read: {error_in_words(error)}"
        ) from error
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise RewardFailed(
            f"{name} returned {type(value).__name__}; a function of spec.reward.perGroup returns a list with a "
            "score for each of completions"
        )
    if len(value) != answers:
        raise RewardFailed(
            f"{name} returned {len(value)} scores for {answers} answers: return one for each of completions, in "
            "their order"
        )
    return [number_of(f"{name}, for completions[{index}],", one) for index, one in enumerate(value)]


def _taken(function: Callable[..., Any], arguments: tuple[str, ...] = ARGUMENTS) -> tuple[str, ...]:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL}
    return tuple(argument for argument in arguments if argument in names)


def _finished(value: Awaitable[Any]) -> Any:
    """The result of a coroutine. All of a thread's run on one loop, so that what they keep of it stays usable."""

    async def result() -> Any:
        return await value

    if (runner := getattr(_thread, "runner", None)) is None:
        runner = _thread.runner = asyncio.Runner()
    return runner.run(result())


_thread = threading.local()


def raised_in_words(function: Callable[..., Any], error: BaseException) -> str:
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
    hint = "; it takes a whole group: name it in spec.reward.perGroup, too"
    reward: Reward = _called_with(ARGUMENTS, made, hint=hint if _takes(made, "completions") else "")
    return reward


def _group_callable(made: Any) -> GroupReward:
    """It, as a reward of whole groups.

    Raises:
        TypeError: it cannot be called with `GROUP_ARGUMENTS`.
    """
    hint = "; it takes a single answer: take it out of spec.reward.perGroup"
    reward: GroupReward = _called_with(GROUP_ARGUMENTS, made, hint=hint if _takes(made, "completion") else "")
    if not _takes(made, "completions"):
        raise TypeError("a function of spec.reward.perGroup must take the keyword argument completions")
    return reward


def _called_with(arguments: tuple[str, ...], made: Any, *, hint: str) -> Any:
    """What is made, if it can be called with those of the arguments that it takes, at least one."""
    if not callable(made):
        raise TypeError(f"it is not a function, but {type(made).__name__}")
    named = ", ".join(arguments)
    must = f"it must take the keyword arguments {arguments[0]} and item, or those that it needs of {named}"
    try:
        inspect.signature(made).bind(**dict.fromkeys(_taken(made, arguments)))
    except (TypeError, ValueError) as error:  # the latter of what is written in C
        raise TypeError(f"{must}: {error}{hint}") from error
    if not _taken(made, arguments):
        raise TypeError(f"{must}: it takes none of them{hint}")
    return made


def _takes(made: Any, argument: str) -> bool:
    try:
        return argument in _taken(made, (argument,))
    except (TypeError, ValueError):
        return False
