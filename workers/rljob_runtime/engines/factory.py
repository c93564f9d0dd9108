"""What the folder of each engine builds on: the base of its options, checks that several make, and its factory.

`rljob validate` and `rljob run` check before they start anything, a rollout worker before it loads the model. Nothing
here loads an engine's libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.model.settings import ModelSettings
from rljob_runtime.plugins import Factory, StrictOptions

#: Fields of the manifest that the messages name.
NAME = "spec.rollout.engine.name"
OPTIONS = "spec.rollout.engine.options"


class EngineOptions(StrictOptions):
    """Options of an engine: unknown fields and wrong types are errors, and manifests write the names in camelCase."""


def recompute_choice(option: bool | Literal["Auto"]) -> bool | None:
    """The option `recomputeCache` as `CacheKeeper.recompute_cache`."""
    return None if option == "Auto" else option


@dataclass(frozen=True, slots=True)
class EngineFactory(Factory[Engine]):
    """Creates engines of one kind, and says what can be known about them before one is created.

    Attributes:
        reads_weights: it reads the initial weights from the model's folder, so the folder must hold them.
        check_fit: checks that it can serve a model with its options, without loading either; raises SpecError. None:
            its constructor checks.
        check_pools: the problems that pools with this engine would cause each other, or none.
        check_server: asks what the engine depends on outside its process whether it can serve; raises SpecError.
        is_paced: between its tokens it waits for nothing outside its pod, so that its pauses say how long later ones
            may be (`rljob_core.hang_limit`).
        endless_options: options under which it ends no response by itself, for the checks of the engine contract.
    """

    reads_weights: bool = False
    check_fit: Callable[[ModelSettings, Any], None] | None = None
    check_pools: Callable[[JobConfig], list[SpecError]] | None = None
    check_server: Callable[[Any], Coroutine[Any, Any, None]] | None = None
    is_paced: bool = False
    endless_options: Mapping[str, Any] = field(default_factory=dict)


def check_length(model: ModelSettings, length: int | None) -> None:
    """Check that the model's context holds prompts and responses of so many tokens together.

    Raises:
        SpecError: it does not.
    """
    if length is not None and length > model.context:
        raise SpecError(
            f"{OPTIONS}.maxLength",
            f"{length} is beyond the model's context of {model.context} tokens: write at most {model.context}",
        )


def longest_sequence(model: ModelSettings, max_length: int | None) -> int:
    """Tokens of a prompt and its response together at most.

    Args:
        model: that generates.
        max_length: the engine's own bound; None is the model's context.
    """
    return min(max_length or model.context, model.context)


def check_response(model: ModelSettings, *, max_length: int | None, max_tokens: int) -> None:
    """Check that there is room for a prompt beside the longest response.

    Args:
        model: that generates.
        max_length: the engine's bound of both together, in tokens; None is the model's context.
        max_tokens: spec.rollout.sampling.maxTokens.

    Raises:
        SpecError: there is none, so that every request would be refused.
    """
    longest = longest_sequence(model, max_length)
    if max_tokens >= longest:
        raise SpecError(
            "spec.rollout.sampling.maxTokens",
            f"{max_tokens} leaves no room for a prompt: the model's context and the engine's maxLength allow {longest} "
            "tokens of both together; lower it",
        )
