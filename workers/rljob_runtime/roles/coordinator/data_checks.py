"""Checks every row of a job's data before anything starts: the command line does, and on a cluster the coordinator.

A file's rows have what their prompts and the rewards read, and the engines have room for them; there are as many
held-out rows as an evaluation asks for, and they are not trained on. Generated items are looked at by a few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_runtime.data.files import FileSource
from rljob_runtime.data.prompts import HeldOutPrompts, PromptSource
from rljob_runtime.engines.registry import room_of
from rljob_runtime.locations import local_path

_GENERATED = 32
"""Prompts of a task that are looked at: each is generated."""
_REPORT_SECONDS = 5.0
_MOST_ANSWERS = 1_000_000
"""Of an evaluation: the coordinator keeps track of each."""


class ScanReport:
    """Says every few seconds how far a pass over the rows is; a short one says nothing.

    Args:
        say: takes a line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._next = 0.0

    def __call__(self, done: int, rows: int) -> None:
        """Take the number of rows that are checked, and of all."""
        if not self._next:  # what came before, such as loading a library, is none of the rows'
            self._next = time.monotonic() + _REPORT_SECONDS
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECONDS
            self._say(f"checking rows: {done:,} of {rows:,}")


def check_data(config: JobConfig, training: PromptSource, held_out: HeldOutPrompts) -> list[str]:
    """Check the data; returns what the user should know of them.

    Args:
        config: of the job.
        training: its prompts.
        held_out: those of its evaluations.

    Raises:
        SpecError: they cannot be used.
    """
    sources = (training, *held_out.sets)
    warnings = list(_without_chat(config))
    for source in sources:
        source.check_rows()
        if source.left_out:
            warnings.append(f"{source.path}: {source.left_out}")
        warnings += _answers(config, source)
    for source in sources:
        warnings += _room(config, source)
    for asked, source in zip(held_out.asked, held_out.sets, strict=True):
        warnings += _held_out(asked, training, source)
    if config.spec.evaluation is not None:
        sets = zip(config.spec.evaluation.held_out, held_out.asked, strict=True)
        answers = sum(asked * (one.group_size + 1) for one, asked in sets)
        if answers > _MOST_ANSWERS:
            raise SpecError(
                "spec.evaluation",
                f"an evaluation would have {answers:,} answers, over {_MOST_ANSWERS:,}: lower samples or groupSize",
            )
    return warnings


def _without_chat(config: JobConfig) -> Iterator[str]:
    """Arguments of a chat template that renders nothing."""
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


def _answers(config: JobConfig, source: PromptSource) -> Iterator[str]:
    """Rows without the `answer` that others have, if only functions of the user's own could read it."""
    items, reward = source.items, config.spec.reward
    if "answer" in reward.fields or not reward.called or not isinstance(items, FileSource):
        return
    lacking = [row for row in source.scan.unanswered if items.holds(row)] if source.scan is not None else []
    if 0 < len(lacking) < items.rows:
        yield (
            f"{source.path}: {len(lacking):,} of {items.rows:,} rows have no `answer`, as the others have "
            f"({items.places(lacking)}): look whether {' and '.join(reward.called)} can score answers to them"
        )


def _room(config: JobConfig, source: PromptSource) -> Iterator[str]:
    """Prompts that no engine takes."""
    room = _smallest_room(config)
    if room is None:
        return
    most = room - config.spec.rollout.sampling.max_tokens
    if most <= 0:  # another check refuses maxTokens
        return
    reason = (
        f"engines take {room:,} tokens of a prompt and its response, and spec.rollout.sampling.maxTokens keeps "
        f"{room - most:,} for the response"
    )
    remedy = "lower maxTokens, shorten spec.data.promptTemplate, or choose a model of a longer context"
    if isinstance(source.items, FileSource):
        if long := source.tokens_above(most):
            raise SpecError(
                f"{source.path}.dataset",
                f"{len(long):,} of {source.items.rows:,} prompts are longer than {most:,} tokens "
                f"({source.items.places(list(long))}; the longest has {max(long.values()):,}): {reason}. Leave them "
                f"out by spec.data.filter.maxPromptTokens: {most}, or {remedy}",
            )
        return
    yield from _room_of_generated(source, most, reason, remedy)


def _room_of_generated(source: PromptSource, most: int, reason: str, remedy: str) -> Iterator[str]:
    try:
        encode = source.encode
    except SpecError:  # another check refuses the model
        return
    sizes = {number: len(encode(source.text(number))) for number in range(_GENERATED)}
    long = {number: size for number, size in sizes.items() if size > most}
    if not long:
        return
    number, size = next(iter(long.items()))
    words = f"{len(long)} of the first {_GENERATED} prompts are longer than {most:,} tokens"
    words = f"{words} (prompt {number} has {size:,}): {reason}"
    if len(long) == _GENERATED:
        raise SpecError(source.path, f"{words}: {remedy}")
    yield f"{source.path}: {words}. They are given up: {remedy}"


def _held_out(samples: int, training: PromptSource, held_out: PromptSource) -> Iterator[str]:
    """Held-out prompts that are asked twice, or trained."""
    if held_out.rows is not None and samples > held_out.rows:
        raise SpecError(
            f"{held_out.path.removesuffix('.data')}.samples",
            f"{samples:,} is more than the {held_out.rows:,} rows of the held-out data, which would be asked again and "
            f"counted twice: lower it to {held_out.rows:,} or less, or leave it out",
        )
    trained = training.digests()
    if trained is None:
        looked = range(min(samples, _GENERATED))
        if all(held_out.digest(index) == training.digest(index) for index in looked):
            raise SpecError(
                f"{held_out.path}.seed",
                "gives the prompts that are trained, in their order: give another seed than spec.data.seed",
            )
        return
    same = [index for index in range(samples) if held_out.digest(index) in trained]
    if not same:
        return
    if len(same) == samples:
        raise SpecError(
            held_out.path, f"each of the {samples:,} held-out prompts is trained, too: give it other rows"
        )
    where = ""
    if isinstance(held_out.items, FileSource):
        where = f" ({held_out.items.places(sorted(map(held_out.items.row_of, same)))} of the held-out data)"
    yield (
        f"{held_out.path}: {len(same):,} of {samples:,} held-out prompts are trained, too{where}, so that the score "
        "counts what is learnt by heart: remove them from either data"
    )


def _smallest_room(config: JobConfig) -> int | None:
    """Tokens that each pool's engines take; None if that is not known, or other checks refuse the engines."""
    name = config.spec.rollout.engine.name
    with suppress(SpecError):
        folder = local_path(config.spec.model.uri)
        rooms = [
            room_of(name, model_path=folder, options=config.engine_options(pool.name))
            for pool in config.spec.rollout.pools
        ]
        return min((room for room in rooms if room is not None), default=None)
    return None
