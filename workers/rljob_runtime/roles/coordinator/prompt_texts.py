"""The texts of prompts, each rendered once for all that a coordinator needs it for: measuring, predicting, sending.

Rendering takes a tenth of a second for a long prompt, so it is done in a thread, while the event loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_core import to_json

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.messages import ENGINE_WORK, EngineWork, EngineWorkBatch, Generate
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.trajectory import group_of
from rljob_runtime.data.row_scan import most_tokens
from rljob_runtime.locations import local_path

log = logging.getLogger(__name__)

CACHED_BYTES = 64 << 20
"""Of memory that the texts of one coordinator take."""
ITEM_BYTES = 512
"""What an assignment takes of a message at most, besides its prompt's text."""
WORK_BYTES = 400_000
"""Bytes of one message at most, but that siblings of one long prompt go together."""
_NAME_BYTES = 64
"""What a trajectory that is cancelled or released takes of a message."""

Render = Callable[[int, bool], str]
"""The text of a prompt by its index; True for held-out prompts."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text, which a message can carry.

    Attributes:
        size: bytes that it takes there: JSON writes some characters as six.
    """

    text: str
    size: int


class PromptTexts:
    """The texts of a job's prompts; those used last are kept.

    Args:
        render: gives a text; called by one thread at a time.
        room: bytes of memory that texts may take.
    """

    def __init__(self, render: Render, *, room: int = CACHED_BYTES) -> None:
        self._render = render
        self._room = room
        self._kept: dict[tuple[int, bool], PromptText] = {}
        self._rendering = asyncio.Lock()

    async def get(self, prompt: int, *, held_out: bool) -> PromptText:
        """Return the text of a prompt.

        Raises:
            ValueError: it is too long for a message, or no Unicode text.
            Exception: the data's own code may raise anything, also for a prompt that had a text before.
        """
        key = (prompt, held_out)
        if key not in self._kept:
            async with self._rendering:
                if key not in self._kept:  # it was not rendered while this waited
                    found = await asyncio.to_thread(self._rendered, *key)
                    self._keep(key, found)
                    return found
        self._kept[key] = found = self._kept.pop(key)  # the one used last is the last to go
        return found

    def _rendered(self, prompt: int, held_out: bool) -> PromptText:
        text = self._render(prompt, held_out)
        size = len(to_json(text))
        if size + ITEM_BYTES > MESSAGE_BYTES:
            raise ValueError(
                f"it takes {size + ITEM_BYTES:,} bytes of the {MESSAGE_BYTES:,} of a message to an engine"
            )
        return PromptText(text, size)

    def _keep(self, key: tuple[int, bool], found: PromptText) -> None:
        self._kept[key] = found
        self._room -= sys.getsizeof(found.text)
        while self._room < 0:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._room += sys.getsizeof(oldest.text)


class EngineMessage:
    """A message of an engine's work queue while it is filled: a text is in it once for all siblings that go together.

    Args:
        epoch: the coordinator's writer epoch.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._items: list[EngineWork] = []
        self._texts: dict[str, str] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: EngineWork, text: PromptText | None) -> bool:
        """Add work behind what there is; False if the message has no room for it. The first always finds some.

        Args:
            item: the work.
            text: of its prompt, if something is to be generated.
        """
        group = group_of(item.trajectory) if isinstance(item, Generate) else ""
        shares = group in self._texts
        size = ITEM_BYTES if isinstance(item, Generate) else _NAME_BYTES * len(item.trajectories)
        if text is not None and not shares:
            size += text.size
        if self._items and self._size + size > (MESSAGE_BYTES if shares else WORK_BYTES):
            return False
        if text is not None:
            self._texts[group] = text.text
        self._items.append(item)
        self._size += size
        return True

    def data(self) -> bytes:
        """What is sent."""
        return ENGINE_WORK.dump_json(EngineWorkBatch(self._epoch, tuple(self._items), self._texts))


def token_counter(config: JobConfig) -> Callable[[str], int]:
    """Counts a prompt's tokens as engines do; their upper bound, if the coordinator cannot read the model."""
    from rljob_runtime.data.prompts import prompt_encoder
    from rljob_runtime.model.tokenizer import Tokenizer  # its library takes a second to import

    try:
        tokenizer = Tokenizer(local_path(config.spec.model.uri, field="spec.model.uri"))
    except SpecError as error:
        log.info("the lengths of prompts are counted in bytes: %s", error)
        return most_tokens
    encode = prompt_encoder(config.spec.data, tokenizer)
    return lambda text: len(encode(text))
