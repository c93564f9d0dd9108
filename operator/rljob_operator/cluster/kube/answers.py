"""What the API server answers, as objects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp

from rljob_operator.cluster.port import Manifest


def parsed(content: bytes) -> Manifest:
    """An answer's object; empty if it has none."""
    answer: Manifest = json.loads(content) if content.strip() else {}
    return answer


def status_in(content: bytes) -> Manifest:
    """The Status in an answer of an error; of an API group that the server does not know, it answers with a text."""
    try:
        return parsed(content)
    except ValueError:
        return {"message": content.decode(errors="replace").strip()[:300]}


async def lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream into lines of any length; aiohttp's own reader refuses those of large objects."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts.clear()
        parts.append(rest)
