"""Prompts of a job: an endless, deterministic sequence of items and of prompts rendered from them, by index.

An index gives the same item in every process: the coordinator renders it, a reward worker looks it up, and both get
the same item again after a restart. Each source imports its library when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jinja2

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import DataSpec, EvaluationDataSpec
from rljob_runtime.locations import local_path
from rljob_runtime.model.templates import LimitedTemplate, prompt_environment
from rljob_runtime.model.tokenizer import Tokenizer

_RENDERED = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
"""Arguments of chat templates that every chat gets a value of its own for."""


class ItemSource(Protocol):
    """Returns data items by index; the same index gives an equal item in every process."""

    def item(self, index: int) -> dict[str, Any]:
        """Return the item's fields."""


class PromptSource:
    """Returns a job's prompts by index, from 0 without end.

    Args:
        data: the data set and the template.
        model_uri: folder of the model whose chat template renders prompts if `data.prompt_template` is null.
        path: the manifest's field that holds `data`, for errors.

    Raises:
        SpecError: the data set is unknown, missing or empty, or refuses the options; the template does not compile or
            uses a field that the first item lacks; or the model has no chat template.
    """

    def __init__(self, data: DataSpec, *, model_uri: str, path: str = "spec.data") -> None:
        self.path = path
        self.items = open_items(data, path)
        template = data.prompt_template
        self._template = None if template is None else LimitedTemplate(prompt_environment, template)
        self._tokenizer: Tokenizer | None = None
        if self._template is None:
            self._tokenizer = chat_tokenizer(local_path(model_uri, field="spec.model.uri"), data)
        # A template that does not fit the data must fail at start-up, not in the middle of the job.
        self.text(0)

    def item(self, index: int) -> dict[str, Any]:
        """Return the item's fields."""
        return self.items.item(index)

    def text(self, index: int) -> str:
        """Return the prompt as the model reads it.

        Raises:
            SpecError: the template uses a field that this item lacks.
        """
        item = self.item(index)
        if self._tokenizer is not None:
            return self._tokenizer.render_chat(_messages(item, path=self.path))
        assert self._template is not None  # noqa: S101  without a tokenizer there is a template
        try:
            return self._template.render({"metadata": {}, **item})
        except jinja2.UndefinedError as error:
            raise SpecError(
                "spec.data.promptTemplate", f"{error.message}; the item at index {index} has {_names(item)}"
            ) from error
        except jinja2.TemplateSyntaxError as error:
            raise SpecError("spec.data.promptTemplate", f"line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise SpecError("spec.data.promptTemplate", f"item {index} does not render: {error}") from error


def chat_tokenizer(folder: Path, data: DataSpec) -> Tokenizer:
    """Open a model's tokenizer, which renders chats as the manifest says.

    Raises:
        SpecError: see `Tokenizer`; or the manifest names arguments of the template that it cannot set.
    """
    if taken := _RENDERED & data.chat_template_kwargs.keys():
        raise SpecError(
            "spec.data.chatTemplateKwargs", f"{', '.join(sorted(taken))} cannot be set: chats have their own"
        )
    return Tokenizer(folder, template_arguments=data.chat_template_kwargs)


def prompt_encoder(data: DataSpec, tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Return what makes the tokens of a prompt's text, wherever one is encoded.

    The chat template has written all special tokens of a chat; a text gets those that the tokenizer begins one with.
    """
    return tokenizer.encode_piece if data.prompt_template is None else tokenizer.encode


def open_prompts(config: JobConfig) -> tuple[PromptSource, PromptSource]:
    """Open the prompts of `spec.data` and the held-out ones of `spec.evaluation`; without it, both are the same.

    Raises:
        SpecError: see `PromptSource` and `data_of`.
    """
    (training, path), held_out = data_of(config)
    prompts = PromptSource(training, model_uri=config.spec.model.uri, path=path)
    if held_out == (training, path):
        return prompts, prompts
    return prompts, PromptSource(held_out[0], model_uri=config.spec.model.uri, path=held_out[1])


def data_of(config: JobConfig) -> tuple[tuple[DataSpec, str], tuple[DataSpec, str]]:
    """Return the data to train on and the held-out data, each with its field; without an evaluation, the first twice.

    Raises:
        SpecError: the held-out prompts would be rows of the file that is trained on.
    """
    spec = config.spec
    training = (spec.data, "spec.data")
    if spec.evaluation is None:
        return training, training
    data = evaluation_data(spec.data, spec.evaluation.data)
    path = "spec.evaluation.data"
    if data.source != "reasoning-gym" and data.dataset == spec.data.dataset:
        raise SpecError(
            f"{path}.dataset", "give another file than spec.data.dataset: its rows are trained on"
        )
    return training, (data, path)


def evaluation_data(data: DataSpec, given: EvaluationDataSpec) -> DataSpec:
    """Return `spec.data` with the fields that `spec.evaluation.data` gives replaced."""
    return data.model_copy(update=given.model_dump(exclude_none=True))


def open_items(data: DataSpec, path: str) -> ItemSource:
    """Open the items of some data, which the manifest's field `path` describes.

    Raises:
        SpecError: the data set is unknown, missing or empty, or refuses the options.
    """
    if data.source == "reasoning-gym":
        from rljob_runtime.data.gym import GymSource

        return GymSource(data.dataset, options=data.options, seed=data.seed, path=path)
    from rljob_runtime.data.files import FileSource

    return FileSource(data.dataset, kind=data.source, options=data.options, seed=data.seed, path=path)


def _messages(item: Mapping[str, Any], *, path: str) -> list[dict[str, Any]]:
    """The chat before the response: the item's `messages`, or its `question` as the user's message."""
    if (messages := item.get("messages")) is not None:
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise SpecError(
                f"{path}.dataset", "`messages` must be a list of objects with `role` and `content`"
            )
        return list(messages)
    if "question" in item:
        return [{"role": "user", "content": item["question"]}]
    raise SpecError(
        f"{path}.dataset",
        f"the chat template needs a field `messages` or `question`; items have {_names(item)}",
    )


def _names(item: Mapping[str, Any]) -> str:
    """Names of an item's fields and of its metadata's, for messages."""
    metadata = item.get("metadata")
    inner = [f"metadata.{name}" for name in metadata] if isinstance(metadata, Mapping) else []
    return ", ".join([*item, *inner])
