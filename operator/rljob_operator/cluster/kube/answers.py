"""What the API server answers, as objects, of whatever size and depth.

Whoever may write to a namespace decides what is in its objects: values nested thousands of levels deep, megabytes of
managed fields. `json` raises `RecursionError` of the former, and so does much of what is done with an object. So
objects come from here without managed fields, which the operator never reads, and without whatever lies deeper than
`LEVELS`: no field of ours may be that deep, so that what is left is still refused. Of a list, a few objects are in
memory at a time.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from rljob_operator.cluster.port import Manifest

LEVELS = 64
"""How deep an object is read: the fields of an object are on its first level."""
_ITEMS = '"items":['
_BETWEEN = re.compile(r"[\s,]*")
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)  # an unfinished text goes to the end
_DECODER = json.JSONDecoder()


def parsed(content: bytes) -> Manifest:
    """An answer's object; empty if it has none."""
    return bounded(_decoded(content.decode(errors="replace"))) if content.strip() else {}


def event_in(line: bytes) -> tuple[str, Manifest]:
    """A watch's event: its type and its object."""
    event = _decoded(line.decode(errors="replace"))
    return event["type"], bounded(event["object"])


def status_in(content: bytes) -> Manifest:
    """The Status in an answer of an error; of an API group that the server does not know, it answers with a text."""
    try:
        return parsed(content)
    except ValueError:
        return {"message": content.decode(errors="replace").strip()[:300]}


async def listed(content: aiohttp.StreamReader) -> AsyncIterator[tuple[list[Manifest], Manifest]]:
    """Read a list: its objects as they arrive, some at a time, and at its end the list without them.

    Raises:
        ValueError: it is not a list.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    head, text, tried = "", "", 0
    async for chunk in content.iter_any():
        text += decode(chunk)
        if not head:
            before, found, after = text.partition(_ITEMS)
            if not found:
                continue
            head, text = before + found, after
        elif len(text) < 2 * tried:  # so that a large object is not tried at each chunk
            continue
        manifests, text = _whole_ones(text)
        tried = len(text)
        yield manifests, {}
    answer = _decoded(head + text)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no list")  # noqa: TRY004 as of an answer that is no JSON
    yield [bounded(manifest) for manifest in answer.pop("items", None) or []], answer


def _whole_ones(text: str) -> tuple[list[Manifest], str]:
    """The objects that a text begins with, and the rest: an unfinished object, or the end of the list."""
    found, at = list[Manifest](), 0
    while True:
        at = _end_of(_BETWEEN, text, at)
        if at == len(text) or text[at] == "]":
            return found, text[at:]
        try:
            item, at = _DECODER.raw_decode(text, at)
        except RecursionError:
            kept, end = _cut(text, at)
            if end is None:
                return found, text[at:]
            item, at = json.loads(kept), end
        except ValueError:
            return found, text[at:]
        found.append(bounded(item))


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        kept, _end = _cut(text, 0)
        return json.loads(kept)


def _cut(text: str, begin: int) -> tuple[str, int | None]:
    """The value that begins there, with null for what lies too deep, and where it ends; None if it does not."""
    parts, depth = [], 0
    for token in _TOKENS.finditer(text, begin):
        match token[0]:
            case "[" | "{":
                depth += 1
                if depth == LEVELS + 2:
                    parts.append(text[begin : token.start()] + "null")
            case "]" | "}":
                if depth == LEVELS + 2:
                    begin = token.end()
                depth -= 1
                if depth == 0:
                    return "".join([*parts, text[begin : token.end()]]), token.end()
    return "", None


def bounded(value: Any) -> Any:
    """An object without managed fields, and without what lies deeper than `LEVELS`. It is changed in place."""
    if not isinstance(value, dict):
        return value
    if isinstance(metadata := value.get("metadata"), dict):
        metadata.pop("managedFields", None)
    level: list[Any] = [value]
    for _ in range(LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return value
    for outer in level:  # emptied, and not removed: it is still as deep as what is refused
        outer.clear()
    return value


async def lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream into lines of any length; aiohttp's own reader refuses those of large objects."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts.clear()
        parts.append(rest)
