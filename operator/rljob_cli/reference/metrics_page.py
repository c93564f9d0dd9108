"""The reference page of every key of `metrics.jsonl`, from the types that the lines are written of."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from rljob_cli.reference.field_pages import prose, table
from rljob_core.messages import STEP_METRICS, StepMetrics, WeightSwap
from rljob_core.messages.metrics import PoolSpeed, StepStats
from rljob_core.records import PipelineSet

_OBJECTS: tuple[tuple[str, type[Any], str], ...] = (
    ("A line", StepMetrics, ""),
    ("stats", StepStats, "Of a commit: what the step did."),
    ("pools", PoolSpeed, "By the name of each pool, in a job that has a pool of scaling policy `Internal`."),
    ("pipeline", PipelineSet, ""),
    ("swaps", WeightSwap, "By the name of each engine, a list of:"),
)
_ITEM = re.compile(r"^ {4}(?! )(?P<names>\w+(?:, \w+)*): (?P<text>.*)$")


def lines() -> Iterator[str]:
    """The page's lines."""
    yield "# Keys of metrics.jsonl"
    yield ""
    yield "Each line of a run's `metrics.jsonl` is a JSON object: a commit (`reward_mean` is set), an evaluation"
    yield "(`heldout_sampled` or `heldout_failed` is set) or the end (`finished` is set). `rljob compare` reads it."
    for title, kind, more in _OBJECTS:
        yield ""
        yield f"## {title if kind is StepMetrics else f'`{title}`'}"
        yield ""
        yield prose(more or (inspect.getdoc(kind) or "").partition("\n")[0])
        yield ""
        meanings = meanings_of(kind)
        types = _types(kind)
        rows = [
            (f"`{field.name}`", types[field.name], _shown(field), prose(meanings.get(field.name, "")))
            for field in dataclasses.fields(kind)
            if field.name != "kind"
        ]
        yield from table(("key", "type", "if it is not set", "meaning"), rows)


def meanings_of(kind: type[Any]) -> dict[str, str]:
    """What the section `Attributes` of a dataclass's docstring says of each attribute."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].splitlines():
        if match := _ITEM.match(line):
            names = match["names"].split(", ")
            found |= dict.fromkeys(names, match["text"])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _types(kind: type[Any]) -> dict[str, str]:
    """The type of each key, as JSON has it."""
    schema = STEP_METRICS.json_schema()
    node = schema if kind is StepMetrics else schema["$defs"][kind.__name__]
    return {name: _type(found) for name, found in node["properties"].items()}


def _type(node: dict[str, Any]) -> str:
    if "anyOf" in node:
        return " or ".join(_type(choice) for choice in node["anyOf"])
    if "$ref" in node or node.get("type") == "object":
        return "object"
    return {"array": "list", "integer": "whole number", "string": "text"}.get(node["type"], str(node["type"]))


def _shown(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    return "always set"
