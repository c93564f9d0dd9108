"""One pass over all rows of a file, before anything starts: what they lack, and how long their prompts are."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from rljob_core.errors import SpecError

if TYPE_CHECKING:
    from rljob_runtime.data.files import FileSource

Progress = Callable[[int, int], None]
"""Called now and then with the number of rows that are read, and of all."""

_SHOWN_FAULTS = 4
_STEP = 1024
"""Rows between two calls of `Progress`."""


def most_tokens(text: str) -> int:
    """At least as many as the tokens of a text, of any tokenizer that adds few special ones."""
    return len(text.encode()) + 16


def digest_of(text: str) -> int:
    """By which equal prompts are found."""
    return xxhash.xxh3_64_intdigest(text.encode())


@dataclass(slots=True)
class RowScan:
    """What one pass over the rows of a file found; rows have their numbers in the file's order, from 0.

    Attributes:
        faults: rows that no model should be trained on, by what is wrong with them.
        sizes: at least the tokens of each row's prompt; 0 of one that does not render.
        counted: rows of which `sizes` has the very number of tokens.
        digests: of each row's prompt; 0 of one that does not render.
        unanswered: rows whose `answer` is absent or null, whoever reads it.
    """

    faults: dict[str, list[int]] = field(default_factory=dict)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    counted: set[int] = field(default_factory=set)
    digests: array[int] = field(default_factory=lambda: array("Q"))
    unanswered: list[int] = field(default_factory=list)

    @property
    def bad(self) -> list[int]:
        """The rows with a fault, in their order."""
        return sorted({row for rows in self.faults.values() for row in rows})

    def in_words(self, items: FileSource) -> str:
        """The faults, each with the first rows that have it."""
        most = sorted(self.faults.items(), key=lambda fault: -len(fault[1]))
        words = [f"{fault} ({items.places(rows)})" for fault, rows in most[:_SHOWN_FAULTS]]
        if len(most) > _SHOWN_FAULTS:
            words.append(f"{len(most) - _SHOWN_FAULTS:,} other faults")
        return "; ".join(words)


def scan_rows(
    items: FileSource,
    *,
    render: Callable[[Mapping[str, Any]], str],
    reads: Mapping[str, str],
    progress: Progress | None,
) -> RowScan:
    """Read and render every row of a file.

    Args:
        items: of the file.
        render: an item's prompt; raises SpecError for an item that has none.
        reads: the fields that an item must have besides, each with who reads it.
        progress: hears how far it is.
    """
    found = RowScan()
    for row, item in enumerate(items.all_rows()):
        if progress is not None and row % _STEP == 0:
            progress(row, len(items))
        try:
            text = render(item)
            fault = "" if text else "the prompt is empty"
        except SpecError as error:
            text, fault = "", error.message
        if fault:
            found.faults.setdefault(fault, []).append(row)
        found.sizes.append(most_tokens(text) if text else 0)
        found.digests.append(digest_of(text) if text else 0)
        if item.get("answer") is None:
            found.unanswered.append(row)
        for fault in _lacking(item, reads):
            found.faults.setdefault(fault, []).append(row)
    return found


def _lacking(item: Mapping[str, Any], reads: Mapping[str, str]) -> Iterator[str]:
    for name, reader in reads.items():
        if item.get(name) is None:
            yield f"`{name}`, which {reader} reads, is {'null' if name in item else 'absent'}"
