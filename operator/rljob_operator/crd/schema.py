"""Converts the JSON schema of a pydantic model to the structural schema of a CustomResourceDefinition.

| pydantic says | the API server gets |
|---|---|
| `$ref` into `$defs` | the definition itself |
| `anyOf` with null | the other type, `nullable`; an `enum` becomes a `pattern`, for no API server finds null in one |
| `const` | `enum` |
| `exclusiveMinimum: 0` | `minimum: 0`, `exclusiveMinimum: true` |
| an integer or a string | `x-kubernetes-int-or-string` |
| any mapping | a map of `x-kubernetes-preserve-unknown-fields`: its values are handed on as they are, null, too |
| `additionalProperties: false` | nothing: unknown fields are refused, or pruned, in any case |
| a list | a map by its `listMapKey`, else atomic |
| `rules`, `immutable`, `grows` | `x-kubernetes-validations` |

Null means the same as an absent field, as in the models. Where a field has a default and is not nullable, the API
server replaces null by the default; where it is nullable, the API server keeps null, and `has` is false. If such a
field were not nullable, the API server would drop null when an object is created or updated, but refuse it in a
server-side apply. Any other keyword in pydantic's schema is an error here, rather than a later error of the API server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

RULES = "x-kubernetes-validations"
FREE_FORM = "x-kubernetes-preserve-unknown-fields"

# Taken over as they are, in this order.
_KEPT = (
    "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "multipleOf",
    "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_LOWERED = {
    "type", "description", "default", "nullable", "const", "exclusiveMinimum", "exclusiveMaximum", "anyOf",
    "items", "listMapKey", "properties", "required", "additionalProperties", "rules", "immutable", "grows", "title",
}  # fmt: skip

_INTEGER_OR_STRING = ["integer", "string"]
_ANYTHING: Schema = {FREE_FORM: True, "nullable": True}


def structural(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of a model.

    Args:
        model: with the extras of `rljob_core.spec.base` (`rules`, `immutable`, `grows`, `listMapKey`).
        defaults: write the defaults out, so that stored objects say what they mean.

    Raises:
        TypeError: the model has something that a structural schema cannot say; the message names the field.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    definitions = document.pop("$defs", {})
    return _Lowering(definitions, defaults).lower(document, model.__name__)


class _Lowering:
    def __init__(self, definitions: Mapping[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def lower(self, node: Schema, path: str) -> Schema:
        node = self._resolved(node, path)
        if unknown := node.keys() - _LOWERED - set(_KEPT):
            raise TypeError(f"{path}: a structural schema cannot say {', '.join(sorted(unknown))}")
        lowered: Schema = {}
        if "description" in node:
            lowered["description"] = " ".join(node["description"].split())
        if node.get("type") == _INTEGER_OR_STRING:
            lowered["x-kubernetes-int-or-string"] = True
        elif "type" in node:
            lowered["type"] = node["type"]
        else:
            raise TypeError(f"{path}: has no type: give it one that is neither Any nor a mixed Literal")
        if node.get("nullable"):
            lowered["nullable"] = True
        lowered |= {keyword: node[keyword] for keyword in _KEPT if keyword in node}
        if "const" in node:
            lowered["enum"] = [node["const"]]
        if node.get("nullable") and "enum" in lowered:
            lowered |= _pattern(lowered.pop("enum"), path)
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"
            if exclusive in node:
                if bound in node:
                    raise TypeError(f"{path}: has two bounds of one kind: keep {bound} or {exclusive}")
                lowered |= {bound: node[exclusive], exclusive: True}
        if node.get("type") == "array":
            lowered |= self._list(node, path)
        if node.get("type") == "object":
            lowered |= self._object(node, path)
        if self._defaults and node.get("default") is not None:
            lowered["default"] = _beyond(node["default"], lowered)
            if "description" in node:
                # `kubectl explain` shows no default of a schema.
                lowered["description"] += _default_note(lowered["default"])
        for rule in node.get("rules", ()):
            _add_rule(lowered, rule["cel"], rule["message"], field=rule.get("field", ""))
        return lowered

    def _resolved(self, node: Schema, path: str) -> Schema:
        """The node without `$ref` and `anyOf`; what it says itself holds against what it refers to."""
        if "$ref" in node:
            node = dict(node)
            referred = self._definitions[node.pop("$ref").removeprefix("#/$defs/")]
            return self._resolved({**referred, **node}, path)
        if "anyOf" not in node:
            return node
        node = dict(node)
        choices = node.pop("anyOf")
        others = [choice for choice in choices if choice != {"type": "null"}]
        if len(others) < len(choices):
            node["nullable"] = True
        if len(others) == 1:
            return self._resolved({**others[0], **node}, path)
        if sorted(choice.get("type", "") for choice in others) == _INTEGER_OR_STRING:
            # Their bounds cannot be distinguished once both are in one schema.
            if any(choice.keys() - {"type", "title"} for choice in others):
                raise TypeError(f"{path}: an integer or string takes no bounds here: check them in a Rule")
            return {**node, "type": _INTEGER_OR_STRING}
        raise TypeError(f"{path}: is a union: use one type, X | None, or int | str")

    def _list(self, node: Schema, path: str) -> Schema:
        lowered: Schema = {"items": self.lower(node["items"], f"{path}[]")}
        if "listMapKey" not in node:
            return {"x-kubernetes-list-type": "atomic", **lowered}
        key = node["listMapKey"]
        if key not in lowered["items"].get("required", ()):
            raise TypeError(f"{path}: the list's key {key} must be a required field of its items")
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key], **lowered}

    def _object(self, node: Schema, path: str) -> Schema:
        further = node.get("additionalProperties", False)
        if "properties" not in node:
            if further is True:
                return {"additionalProperties": dict(_ANYTHING)}
            if further is False:
                raise TypeError(
                    f"{path}: an object needs fields: declare them, or allow any (additionalProperties)"
                )
            return {"additionalProperties": self.lower(further, f"{path}.*")}
        if further is not False:
            raise TypeError(
                f"{path}: an object with declared fields must not allow others: set extra to forbid"
            )
        fields = node["properties"]
        lowered: Schema = {"required": node["required"]} if node.get("required") else {}
        lowered["properties"] = {name: self.lower(field, f"{path}.{name}") for name, field in fields.items()}
        for name, field in fields.items():
            if "immutable" in field:
                _freeze(lowered, name, **field["immutable"])
            if "grows" in field:
                message = f"{name} never becomes smaller, because {field['grows']['because']}"
                _add_rule(
                    lowered["properties"][name], "self >= oldSelf", message, reason="FieldValueForbidden"
                )
        return lowered


def _pattern(choices: list[Any], path: str) -> Schema:
    if not all(isinstance(choice, str) for choice in choices):
        raise TypeError(f"{path}: the values of a nullable enumeration must be strings: make it not nullable")
    either = "|".join(re.escape(choice).replace(r"\-", "-") for choice in choices)
    return {"pattern": f"^({either})$", "maxLength": max(map(len, choices))}


def _beyond(default: Any, schema: Schema) -> Any:
    """What a default adds to the defaults of the fields below, which the API server fills in by itself."""
    fields = schema.get("properties")
    if fields is None or not isinstance(default, dict):
        return default
    found = {
        name: _beyond(value, fields[name])
        for name, value in default.items()
        if value is not None or fields[name].get("nullable")
    }
    return {name: value for name, value in found.items() if value != fields[name].get("default")}


def _default_note(default: Any) -> str:
    if default in ("", [], {}) or isinstance(default, dict):
        return ""
    shown = default if isinstance(default, str) else json.dumps(default)
    return f" Default: {shown}."


def _freeze(
    owner: Schema,
    name: str,
    *,
    because: str,
    instead: str,
    among: Sequence[str],
    excepting: Sequence[str] = (),
) -> None:
    """Let the API server keep a field as it was, or among values that may replace each other.

    Objects are frozen leaf by leaf: the message then names what was changed, and to the CEL of Kubernetes before 1.35
    no object with a null in it equals itself.

    A free-form map is not declared to CEL, and `self.options` would not compile; at run time it exists nevertheless,
    so it is `dyn`. It must be a map of anything: of an object that preserves unknown fields CEL compares only the keys
    that both have, and a renamed one would pass.
    """
    field = owner["properties"][name]
    message = f"{name} is immutable, because {because}: change it back, or {instead}"
    free_form = field.get("additionalProperties") == _ANYTHING
    always = name in owner.get("required", ()) or ("default" in field and not field.get("nullable"))
    if free_form or not always:
        # A rule of a field is not asked when the field comes or goes; its owner's is.
        now, before = (f"dyn({it}).{name}" if free_form else f"{it}.{name}" for it in ("self", "oldSelf"))
        same = f"has({now}) == has({before})"
        if "properties" not in field:
            same += f" && (!has({now}) || {now} == {before})"
        _add_rule(owner, same, message, field=name, reason="FieldValueForbidden")
    elif "properties" not in field:
        same = "self == oldSelf"
        if among:
            same += f" || [self, oldSelf].all(it, it in [{', '.join(map(repr, among))}])"
        _add_rule(field, same, message, reason="FieldValueForbidden")
    for below in (found for found in field.get("properties", ()) if found not in excepting):
        _freeze(field, below, because=because, instead=instead, among=among)


def _add_rule(schema: Schema, cel: str, message: str, *, field: str = "", reason: str = "") -> None:
    rule = {"rule": cel, "message": message}
    if field:
        rule["fieldPath"] = f".{field}"
    if reason:
        rule["reason"] = reason
    schema[RULES] = [*schema.get(RULES, ()), rule]
