"""The texts of prompts, each rendered once for all that a coordinator needs it for: measuring, predicting, sending.

Rendering takes a tenth of a second for a long prompt, so it is done in a thread, while the event loop goes on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_core import to_json

from rljob_core.messages.limits import MESSAGE_BYTES

CACHED_BYTES = 64 << 20
"""Of memory that the texts of one coordinator take."""
ITEM_BYTES = 512
"""What an assignment takes of a message at most, besides its prompt's text."""

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
