"""Checks that several engines use to tell whether they can serve a model, without loading the engine or the model.

`rljob validate` and `rljob run` check before they start anything, and a rollout worker before it loads the model.
"""

from __future__ import annotations

from rljob_core.errors import SpecError
from rljob_runtime.model.settings import ModelSettings

#: Fields of the manifest that the messages name.
NAME = "spec.rollout.engine.name"
OPTIONS = "spec.rollout.engine.options"


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
