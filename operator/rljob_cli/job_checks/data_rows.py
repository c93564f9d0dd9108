"""What the rows of a job's data lack, beyond the first one: an answer to compare with, room in the model, a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_runtime.data.prompts import PromptSource, prompt_encoder
from rljob_runtime.engines.registry import room_of
from rljob_runtime.locations import local_path
from rljob_runtime.model.tokenizer import Tokenizer

_COMPARE = ("exact_match", "math_verify")
"""Functions that compare with the item's `answer`."""
_ROWS, _GENERATED = 512, 32
"""Prompts that are looked at: of a file in the order in which they are trained, and of a task, which generates each."""


def data_warnings(config: JobConfig, source: PromptSource) -> Iterator[str]:
    """What the user should know of the rows.

    Raises:
        SpecError: no row can be trained.
    """
    yield from _without_chat(config)
    yield from _without_answer(config, source)
    yield from _without_room(config, source)


def _without_chat(config: JobConfig) -> Iterator[str]:
    data = config.spec.data
    if (
        data.chat_template_kwargs
        and data.prompt_template is not None
        and config.spec.rollout.environment is None
    ):
        yield (
            "spec.data.chatTemplateKwargs has no effect: spec.data.promptTemplate renders prompts, no chat "
            'template. Remove it, or write promptTemplate: ""'
        )


def _without_answer(config: JobConfig, source: PromptSource) -> Iterator[str]:
    functions = [name for name in config.spec.reward.functions if name in _COMPARE]
    rows = getattr(source.items, "rows", None)
    missing = getattr(source.items, "missing", None)
    if not functions or rows is None or missing is None or not (lacking := missing("answer")):
        return
    field = f"{source.path}.dataset"
    some = (
        f"{lacking[0]} of the file"
        if len(lacking) == 1
        else f"{lacking[0]} of the file, and {len(lacking) - 1} more"
    )
    if len(lacking) == rows:
        raise SpecError(
            field,
            f"no row has an `answer`, with which {functions[0]} compares: add it, or score by another function",
        )
    yield (
        f"{field}: {len(lacking)} of {rows} rows have no `answer` (row {some}), with which {functions[0]} compares, "
        "so that no response to them scores: add it, or remove these rows"
    )


def _without_room(config: JobConfig, source: PromptSource) -> Iterator[str]:
    """Prompts that no engine takes, of those that come first."""
    room, tokenizer = _smallest_room(config), _tokenizer(config)
    if room is None or tokenizer is None:
        return
    most = room - config.spec.rollout.sampling.max_tokens
    if most <= 0:  # another check refuses maxTokens
        return
    rows = getattr(source.items, "rows", None)
    looked = _GENERATED if rows is None else min(rows, _ROWS)
    encode = prompt_encoder(config.spec.data, tokenizer)
    long: dict[int, int] = {}
    silent: dict[int, str] = {}
    for number in range(looked):
        try:
            tokens = len(encode(source.text(number)))
        except SpecError as error:
            silent[number] = error.message
            continue
        if tokens > most:
            long[number] = tokens
    if silent:
        first, message = next(iter(silent.items()))
        yield (
            f"{source.path}: {len(silent)} of the first {looked} prompts do not render, and are given up: prompt "
            f"{first}: {message}"
        )
    if not long:
        return
    first, tokens = next(iter(long.items()))
    words = (
        f"{len(long)} of the first {looked} prompts are longer than {most} tokens (prompt {first} has {tokens}): "
        f"engines take {room} tokens of a prompt and its response, and spec.rollout.sampling.maxTokens keeps "
        f"{room - most} for the response"
    )
    remedy = "lower maxTokens, shorten spec.data.promptTemplate, or choose a model of a longer context"
    if len(long) == looked:
        raise SpecError(source.path, f"{words}: {remedy}")
    yield f"{source.path}: {words}. They are given up: {remedy}, or remove these rows"


def _tokenizer(config: JobConfig) -> Tokenizer | None:
    """The model's; None if another check refuses it."""
    with suppress(SpecError):
        return Tokenizer(local_path(config.spec.model.uri))
    return None


def _smallest_room(config: JobConfig) -> int | None:
    """Tokens that each pool's engines take; None if that is not known, or other checks refuse the engines."""
    name, folder = config.spec.rollout.engine.name, local_path(config.spec.model.uri)
    with suppress(SpecError):
        rooms = [
            room_of(name, model_path=folder, options=config.engine_options(pool.name))
            for pool in config.spec.rollout.pools
        ]
        return min((room for room in rooms if room is not None), default=None)
    return None
