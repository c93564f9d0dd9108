"""Finds where responses end: a table by vocabulary says which new tokens need a closer look.

A token can complete a stop string only if the token's text contains the string or begins with an end of it. Such tokens
are marked beforehand, so that text is decoded only for rows that have just drawn one, and only their newest tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Decode = Callable[[Sequence[int]], str]


def decoder(decode: Decode | None, folder: Path) -> Decode:
    """What decodes: this function, or else the tokenizer in a model's folder, which takes a while to load."""
    if decode is not None:
        return decode
    from rljob_runtime.model.tokenizer import Tokenizer

    return Tokenizer(folder).decode


#: What decoders write for bytes that are not a whole character.
_PARTIAL = "�"


class Mark(IntEnum):
    """What a token means for a row."""

    NOTHING = 0
    STOP = 1
    MAYBE = 2
    """It may complete a stop string."""


class StopTable:
    """The distinct ways in which requests end.

    Args:
        vocabulary: number of token ids.
        decode: text of token ids; asked for only when a request has stop strings.
    """

    def __init__(self, *, vocabulary: int, decode: Callable[[], Decode]) -> None:
        self._vocabulary = vocabulary
        self._decoder = decode
        self._decode: Decode | None = None
        self._texts: list[str] | None = None
        self._known: dict[tuple[frozenset[int], tuple[str, ...]], int] = {(frozenset(), ()): 0}
        self._strings: list[tuple[str, ...]] = [()]
        self.marks: NDArray[np.uint8] = np.zeros((1, vocabulary), np.uint8)
        """By ending and token. Ending 0 never stops."""

    def ending(self, tokens: frozenset[int], strings: tuple[str, ...]) -> int:
        """The row of `marks` for these stop tokens and strings."""
        key = (tokens, strings)
        if key not in self._known:
            row = np.zeros((1, self._vocabulary), np.uint8)
            if strings:
                for token, text in enumerate(self._token_texts()):
                    if any(_may_complete(stop, text) for stop in strings):
                        row[0, token] = Mark.MAYBE
            row[0, [token for token in tokens if 0 <= token < self._vocabulary]] = Mark.STOP
            self.marks = np.concatenate([self.marks, row])
            self._strings.append(strings)
            self._known[key] = len(self._strings) - 1
        return self._known[key]

    def completed(self, ending: int, response: NDArray[np.int64]) -> bool:
        """Whether the newest of these response tokens completes a stop string."""
        strings = self._strings[ending]
        # A character is at most four tokens (the bytes of UTF-8); a few more, since the first may be torn.
        tail = response[-4 * (max(map(len, strings)) + 1) :]
        text = self._text(tail.tolist())
        return any(stop in text for stop in strings)

    def _text(self, tokens: Sequence[int]) -> str:
        if self._decode is None:
            self._decode = self._decoder()
        return self._decode(tokens)

    def _token_texts(self) -> list[str]:
        if self._texts is None:
            # Some tokenizers drop a leading blank: decode after another token, and take that one's text off.
            alone = [self._text([token]) for token in range(self._vocabulary)]
            before = next((t for t, text in enumerate(alone) if text.isalnum()), None)
            if before is None:
                self._texts = alone
            else:
                cut = len(alone[before])
                self._texts = [self._text([before, token])[cut:] for token in range(self._vocabulary)]
        return self._texts


def _may_complete(stop: str, text: str) -> bool:
    if _PARTIAL in text or stop in text:
        return True
    return any(text.startswith(stop[-size:]) for size in range(1, min(len(stop), len(text)) + 1))
