"""Turns pydantic's error details into messages that tell the user what is wrong and what to write instead."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rljob_core.spec import model_in

_NEEDED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def dotted(location: Sequence[str | int]) -> str:
    """Format a field's path as in `spec.rollout.pools[0].replicas`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def location(detail: ErrorDetails) -> tuple[str | int, ...]:
    """Return the path of the field that the user must change.

    Pydantic reports a broken rule between fields at the object that contains them; the rule names the field.
    """
    field = detail.get("ctx", {}).get("field") if detail["type"] == "rule" else None
    return (*detail["loc"], field) if field else detail["loc"]


def advice(root: type[BaseModel], content: Any, detail: ErrorDetails) -> str:
    """Say in one sentence what is wrong at `detail["loc"]` and what to write instead.

    Args:
        root: the model of the whole document.
        content: the document.
        detail: one of the errors that pydantic reported when it validated `content` against `root`.
    """
    kind, location, given = detail["type"], detail["loc"], detail["input"]
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "rule":
        message = str(context["message"])
        return f"{_shown(given)}: {message}" if isinstance(given, str) else message
    if kind == "extra_forbidden":
        return _unknown(root, content, location, context.get("known", ()))
    field = _field(root, location)
    if kind == "missing":
        return f"is required{_meaning(field)}"
    if kind in {"literal_error", "enum"}:
        return _choice(str(context["expected"]), given)
    if kind in _NEEDED:
        return f"{_NEEDED[kind]} is needed, not {_shown(given)}{_unquoted(kind, given)}{_meaning(field)}"
    if kind in _BOUNDS:
        name, key = _BOUNDS[kind]
        return f"must be {name} {context[key]:.10g}, not {_shown(given)}"
    if kind in {"too_short", "too_long"}:
        least = kind == "too_short"
        count = context["min_length" if least else "max_length"]
        return f"must have {'at least' if least else 'at most'} {count} {'item' if count == 1 else 'items'}"
    if kind in {"string_too_short", "string_too_long"}:
        if kind == "string_too_short":  # of which only 1 is used
            return f"must not be empty{_meaning(field)}"
        return f"must have at most {context['max_length']} characters, not {len(given)}"
    if kind == "value_error":
        return str(context["error"])
    return f"{_IN_OUR_WORDS.sub('must be', detail['msg'])}, not {_shown(given)}{_meaning(field)}"


_IN_OUR_WORDS = re.compile(r"^Input should be")
_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def nearest(given: str, names: Iterable[str], *, n: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names that resemble what was given, the most alike first; upper and lower case count as the same.

    Args:
        given: what somebody wrote.
        names: that are possible.
        n: names at most.
        cutoff: likeness, of 1 for the same, that a name must have.
    """
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower().replace("_", ""), folded, n=n, cutoff=cutoff)
    return [folded[name] for name in close]


def _choice(expected: str, given: object) -> str:
    options = [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
    close = nearest(str(given), options, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close and len(options) > 1 else ""
    if len(options) == 1:
        return f"{_shown(given)} is not possible: write {options[0]}"
    return f"{_shown(given)} is not possible: {hint}write one of {', '.join(options)}"


def _unknown(
    root: type[BaseModel], content: Any, location: Sequence[str | int], known: Sequence[str] = ()
) -> str:
    """Suggest known fields whose names resemble the unknown one, else the fields that the object does not set yet."""
    parent = _model(root, location[:-1])
    if parent is None:
        return "unknown field: remove it"
    name = str(location[-1])
    fields = list(known) or [field.alias or key for key, field in parent.model_fields.items()]
    if close := nearest(name, fields):
        return f"unknown field: did you mean {' or '.join(close)}?"
    beside: Any = content
    for step in location[:-1]:
        beside = beside[step]
    free = [field for field in fields if field not in beside]
    return f"unknown field: remove it, or write one of {', '.join(free or fields)}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + '…"'


def _unquoted(kind: str, given: object) -> str:
    if kind in {"int_type", "float_type", "bool_type"} and isinstance(given, str):
        return ": write it without quotes" if _plain(given) else ""
    if kind == "string_type" and isinstance(given, int | float):
        return f': write "{given}"'
    return ""


def _plain(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _meaning(field: FieldInfo | None) -> str:
    return f". {' '.join(field.description.split())}" if field is not None and field.description else ""


# ------------------------------------------------------------------------------------------------ the models


def _field(root: type[BaseModel], location: Sequence[str | int]) -> FieldInfo | None:
    """Return the field at a location; for an item of a list, the list's field."""
    names = list(location)
    while names and isinstance(names[-1], int):
        names.pop()
    parent = _model(root, names[:-1]) if names else None
    if parent is None:
        return None
    return next((f for key, f in parent.model_fields.items() if (f.alias or key) == names[-1]), None)


def _model(root: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model of the object at a location."""
    here: type[BaseModel] | None = root
    for step in location:
        if isinstance(step, int):
            continue
        if here is None:
            return None
        field = next((f for key, f in here.model_fields.items() if (f.alias or key) == step), None)
        here = None if field is None else model_in(field.annotation)
    return here
