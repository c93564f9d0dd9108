"""Finds the tool calls in what a model has written.

| name | what the model writes |
|---|---|
| `Hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` for each call, as Qwen 2.5 and 3 do |
| `Json` | one object `{"name": …, "parameters": {…}}` or `"arguments"`, and nothing else, as Llama 3 does |
| `None` | none is looked for |

What is no call remains text. Nothing is repaired: a model learns from what comes of its mistakes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        name: of the tool, as the model has written it.
        arguments: by name.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What a model has written.

    Attributes:
        text: outside of tool calls.
        calls: in order.
    """

    text: str
    calls: Sequence[ToolCall] = ()


Parser = Callable[[str], ParsedAnswer]

_HERMES = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _hermes(text: str) -> ParsedAnswer:
    calls = list[ToolCall]()

    def taken(match: re.Match[str]) -> str:
        call = _call_of(match[1], ("arguments",))
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _HERMES.sub(taken, text)
    return ParsedAnswer(rest.strip() if calls else text, calls)


def _json(text: str) -> ParsedAnswer:
    call = _call_of(text, ("parameters", "arguments"))
    return ParsedAnswer(text) if call is None else ParsedAnswer("", [call])


def _call_of(text: str, names: Sequence[str]) -> ToolCall | None:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return None
    arguments: object = next((given[name] for name in names if name in given), {})
    return ToolCall(given["name"], arguments) if isinstance(arguments, dict) else None


def _nothing(text: str) -> ParsedAnswer:
    return ParsedAnswer(text)


PARSERS: Mapping[str, Parser] = {"Hermes": _hermes, "Json": _json, "None": _nothing}
"""Parsers by the names that a manifest uses."""
