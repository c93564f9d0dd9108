"""Prompts of a job: an endless, deterministic sequence of items and of prompts rendered from them, by index.

An index gives the same item in every process: the coordinator renders it, a reward worker looks it up, and both get
the same item again after a restart. Each source imports its library when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import jinja2

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import MOST_SAMPLES, DataSpec, EvaluationDataSpec, HeldOutSet
from rljob_runtime.data.row_scan import Progress, RowScan, digest_of, scan_rows
from rljob_runtime.locations import local_path
from rljob_runtime.model.templates import LimitedTemplate, prompt_environment, without_nulls
from rljob_runtime.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rljob_runtime.data.files import FileSource

_RENDERED = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
"""Arguments of chat templates that every chat gets a value of its own for."""
HELD_OUT_SEED = 1_000_003
"""Of held-out data that give none."""


class ItemSource(Protocol):
    """Returns data items by index; the same index gives an equal item in every process."""

    def item(self, index: int) -> dict[str, Any]:
        """Return the item's fields."""


class PromptSource:
    """Returns a job's prompts by index, from 0 without end.

    Args:
        data: the data set and the template.
        model_uri: folder of the model whose chat template renders prompts if `data.prompt_template` is null, and whose
            tokenizer counts their tokens.
        path: the manifest's field that holds `data`, for errors.
        reads: fields that an item must have, besides what its prompt needs, each with who reads it.
        progress: hears how far a pass over all rows is.

    Attributes:
        items: the items; of a file, without the rows that `data` leaves out.
        left_out: how many rows are left out and why, in words; empty if none is.

    Raises:
        SpecError: the data set is unknown, missing or empty, or refuses the options; the template does not compile or
            uses a field that the first item lacks; no row is left; or the model has no chat template.
    """

    def __init__(
        self,
        data: DataSpec,
        *,
        model_uri: str,
        path: str = "spec.data",
        reads: Mapping[str, str] = MappingProxyType({}),
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self.items = open_items(data, path)
        self.left_out = ""
        self._data = data
        self._model_uri = model_uri
        self._reads = reads
        self._progress = progress
        template = data.prompt_template
        self._template = None if template is None else LimitedTemplate(prompt_environment, template)
        if self._template is None:
            self._tokenizer.check_chat()
        if data.leaves_rows_out:
            self._leave_rows_out()
        # A template that does not fit the data must fail at start-up, not in the middle of the job.
        try:
            self.text(0)
        except SpecError:
            if self.scan is not None and len(self.scan.bad) < len(self.scan.sizes):
                self.check_rows()
            raise

    def item(self, index: int) -> dict[str, Any]:
        """Return the item's fields."""
        return self.items.item(index)

    def text(self, index: int) -> str:
        """Return the prompt as the model reads it.

        Raises:
            SpecError: the template uses a field that this item lacks, or that is null.
        """
        item = self.item(index)
        try:
            return self._render(item)
        except SpecError as error:
            words = f"{error.message}; the item at index {index} has {_names(item)}"
            raise SpecError(error.path, words) from error

    @cached_property
    def scan(self) -> RowScan | None:
        """What a pass over all rows finds; None of generated items."""
        if (rows := self._rows) is None:
            return None
        return scan_rows(rows, render=self._render, reads=self._reads, progress=self._progress)

    def check_rows(self) -> None:
        """Check that no row lacks what its prompt or a reward reads, unless such rows are left out.

        Raises:
            SpecError: some do; it names the first of them.
        """
        if self._data.on_bad_row == "Skip" or self._rows is None or self.scan is None:
            return
        bad, total = len(self.scan.bad), len(self.scan.sizes)
        if bad:
            remedy = "" if bad == total else ", or leave them out by spec.data.onBadRow: Skip"
            raise SpecError(
                f"{self.path}.dataset",
                f"{bad:,} of {total:,} rows cannot be used: {self.scan.in_words(self._rows)}. Give them what they "
                f"lack{remedy}",
            )

    def tokens_above(self, most: int) -> dict[int, int]:
        """The tokens of each prompt of a file that has more, by its row in the file's order, from 0.

        A long prompt's tokens are counted once, whoever asks.

        Raises:
            SpecError: the model has no tokenizer.
        """
        if (rows := self._rows) is None or self.scan is None:
            return {}
        found, counted = self.scan.sizes, self.scan.counted
        long = [row for row, size in enumerate(found) if size > most and rows.holds(row)]
        for row in long:
            if row not in counted:
                found[row] = len(self.encode(self._render(rows.row(row))))
                counted.add(row)
        return {row: found[row] for row in long if found[row] > most}

    @cached_property
    def encode(self) -> Callable[[str], list[int]]:
        """Makes the tokens of a prompt's text.

        Raises:
            SpecError: the model has no tokenizer.
        """
        return prompt_encoder(self._data, self._tokenizer)

    def digest(self, index: int) -> int:
        """Of the prompt at this index."""
        return digest_of(self.text(index))

    def digests(self) -> frozenset[int] | None:
        """Of all prompts; None of generated ones, which are without end."""
        if (rows := self._rows) is None or self.scan is None:
            return None
        return frozenset(digest for row, digest in enumerate(self.scan.digests) if rows.holds(row))

    def _leave_rows_out(self) -> None:
        if (rows := self._rows) is None or self.scan is None:
            return
        bad = self.scan.bad if self._data.on_bad_row == "Skip" else []
        words = [self.scan.in_words(rows)] if bad else []
        left = set(bad)
        if (most := self._data.filter.max_prompt_tokens) is not None and (long := self.tokens_above(most)):
            words.append(f"the prompt has more than {most:,} tokens ({rows.places(list(long))})")
            left |= long.keys()
        if len(left) == len(rows):
            raise SpecError(f"{self.path}.dataset", f"every row is left out: {'; '.join(words)}")
        if left:
            rows.leave_out(left)
            self.left_out = f"{len(left):,} of {len(rows):,} rows are left out: {'; '.join(words)}"

    @property
    def rows(self) -> int | None:
        """Rows of a file that are not left out; None of generated items, which are without end."""
        return None if (rows := self._rows) is None else rows.rows

    @property
    def _rows(self) -> FileSource | None:
        from rljob_runtime.data.files import FileSource

        return self.items if isinstance(self.items, FileSource) else None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return chat_tokenizer(local_path(self._model_uri, field="spec.model.uri"), self._data)

    def _render(self, item: Mapping[str, Any]) -> str:
        if self._template is None:
            return self._tokenizer.render_chat(_messages(item, path=self.path))
        try:
            return self._template.render(without_nulls({"metadata": {}, **item}))
        except jinja2.UndefinedError as error:
            raise SpecError("spec.data.promptTemplate", str(error.message)) from error
        except jinja2.TemplateSyntaxError as error:
            raise SpecError("spec.data.promptTemplate", f"line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise SpecError("spec.data.promptTemplate", f"the item does not render: {error}") from error


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


class HeldOutItems:
    """The items of a job's held-out sets: the first set's are numbered from 0, the second's from `MOST_SAMPLES`, …

    Args:
        sets: the items of each set.
    """

    def __init__(self, sets: Sequence[ItemSource]) -> None:
        self._sets = sets

    def item(self, index: int) -> dict[str, Any]:
        """Return the item's fields."""
        number, index = divmod(index, MOST_SAMPLES)
        return self._sets[number].item(index)


class HeldOutPrompts:
    """A job's held-out prompts, numbered as `HeldOutItems`.

    Args:
        config: of the job.
        progress: hears how far a pass over all rows of a file is.

    Attributes:
        sets: the prompts of each set; empty if the job has no evaluation.
        asked: how many of each an evaluation asks.

    Raises:
        SpecError: see `PromptSource` and `held_out_data`.
    """

    def __init__(self, config: JobConfig, progress: Progress | None = None) -> None:
        found = held_out_data(config)
        self.sets = tuple(_prompts_of(config, data, path, progress) for _, data, path in found)
        self.asked = tuple(
            one.asked(source.rows) for (one, _, _), source in zip(found, self.sets, strict=True)
        )

    def text(self, prompt: int) -> str:
        """Return a prompt as the model reads it.

        Raises:
            SpecError: see `PromptSource.text`.
        """
        number, index = divmod(prompt, MOST_SAMPLES)
        return self.sets[number].text(index)


def open_prompts(config: JobConfig, progress: Progress | None = None) -> tuple[PromptSource, HeldOutPrompts]:
    """Open the prompts of `spec.data` and the held-out ones of `spec.evaluation`.

    Args:
        config: of the job.
        progress: hears how far a pass over all rows of a file is.

    Raises:
        SpecError: see `PromptSource` and `held_out_data`.
    """
    return _prompts_of(config, config.spec.data, "spec.data", progress), HeldOutPrompts(config, progress)


def open_job_items(config: JobConfig, data: DataSpec, path: str) -> ItemSource:
    """Open the items of some data of a job, each with the index that it has in every process.

    Raises:
        SpecError: see `PromptSource`.
    """
    return _prompts_of(config, data, path).items if data.leaves_rows_out else open_items(data, path)


def _prompts_of(
    config: JobConfig, data: DataSpec, path: str, progress: Progress | None = None
) -> PromptSource:
    uri, reads = config.spec.model.uri, config.spec.reward.fields
    return PromptSource(data, model_uri=uri, path=path, reads=reads, progress=progress)


def held_out_data(config: JobConfig) -> list[tuple[HeldOutSet, DataSpec, str]]:
    """Return the held-out sets of a job, each with its data, and the field that describes these.

    Raises:
        SpecError: the held-out prompts would be rows of the file that is trained on.
    """
    spec = config.spec
    found = (
        []
        if spec.evaluation is None
        else [
            (one, evaluation_data(spec.data, one.data), f"{one.path}.data")
            for one in spec.evaluation.held_out
        ]
    )
    for _, data, path in found:
        if data.source != "reasoning-gym" and data.dataset == spec.data.dataset:
            raise SpecError(
                f"{path}.dataset", "give another file than spec.data.dataset: its rows are trained on"
            )
    return found


def evaluation_data(data: DataSpec, given: EvaluationDataSpec) -> DataSpec:
    """Return `spec.data` with the fields that a held-out set gives replaced."""
    return data.model_copy(update={"seed": HELD_OUT_SEED, **given.model_dump(exclude_none=True)})


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
    """The chat before the response: the item's `messages`, or its `question` as the user's message.

    Raises:
        SpecError: it has neither, or there is null in their place.
    """
    if "messages" not in item and "question" not in item:
        raise SpecError(f"{path}.dataset", "the chat template needs a field `messages` or `question`")
    name = "messages" if "messages" in item else "question"
    if item[name] is None:
        raise SpecError(f"{path}.dataset", f"{name!r} is null")
    if name == "question":
        return [{"role": "user", "content": item[name]}]
    if not isinstance(item[name], list) or not item[name]:
        raise SpecError(f"{path}.dataset", "`messages` must be a list of objects with `role` and `content`")
    for message in item[name]:
        if not isinstance(message, dict) or (
            message.get("content") is None and not message.get("tool_calls")
        ):
            raise SpecError(f"{path}.dataset", "a message of 'messages' has no content")
    return list(item[name])


def _names(item: Mapping[str, Any]) -> str:
    """Names of an item's fields and of its metadata's, for messages."""
    metadata = item.get("metadata")
    inner = [f"metadata.{name}" for name in metadata] if isinstance(metadata, Mapping) else []
    return ", ".join([*item, *inner])
