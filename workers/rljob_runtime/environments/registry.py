"""The environments by the names that a manifest uses: `package.module:Class`, or an entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.ports import Environment
from rljob_core.spec import AGENT
from rljob_core.words import error_in_words
from rljob_runtime.plugins import Registry, imported

FIELD = "spec.rollout.environment"
NAME, OPTIONS, NETWORK = f"{FIELD}.name", f"{FIELD}.options", f"{FIELD}.network"

_MODULES = {AGENT: "rljob_runtime.environments.agent.environment"}

EnvironmentFactory = Callable[..., Environment]
"""Makes an environment of its options, which are keywords."""


def _adopt(made: object) -> EnvironmentFactory:
    """It, as a factory.

    Raises:
        TypeError: it makes no environments.
    """
    if not callable(made):
        raise TypeError(f"it is not a class, but {type(made).__name__}")
    if isinstance(made, type) and not inspect.iscoroutinefunction(getattr(made, "open", None)):
        raise TypeError("it has no method `async def open(self, start)`")
    factory: EnvironmentFactory = made
    return factory


def _agent(
    *,
    command: Sequence[str],
    model: str = "policy",
    toolCalls: str = "Hermes",  # noqa: N803  a manifest's name
    plainText: bool = False,  # noqa: N803
) -> Environment:
    """Runs a program in each episode; see `Agent`."""
    from rljob_runtime.environments.agent.environment import Agent  # it imports an HTTP server

    return Agent(command, model=model, tool_calls=toolCalls, plain_text=plainText)


ENVIRONMENTS = Registry[EnvironmentFactory](
    "environment", "rljob.environments", {AGENT: _agent}, _adopt, otherwise="package.module:Class"
)


def make_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """The environment of that name, with those options.

    Raises:
        SpecError: the name is unknown or does not load, or the environment refuses the options.
    """
    factory = (
        imported(name, "class", _adopt, field=NAME) if ":" in name else ENVIRONMENTS.find(name, field=NAME)
    )
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise SpecError(OPTIONS, f"{name} does not take them: {error}") from error
    except ValueError:  # it has no signature that Python knows
        pass
    try:
        return factory(**options)
    except SpecError:
        raise
    except BaseException as error:  # a user's code may raise anything
        raise SpecError(FIELD, f"{name} cannot be made: {error_in_words(error)}") from error


def module_of(name: str) -> str:
    """The module that a name leads to; empty for an entry point's."""
    return name.partition(":")[0] if ":" in name else _MODULES.get(name, "")
