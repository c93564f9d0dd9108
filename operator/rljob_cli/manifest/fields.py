"""What every field of the API and every option of an engine, a backend or a length predictor is, as a tree to look up.

The tree is read from the models by which manifests are checked, so it says what they accept.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from rljob_core.advice import nearest
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, RolloutPool, Site
from rljob_runtime.engines.registry import ENGINES
from rljob_runtime.lengths.registry import LENGTH_PREDICTORS
from rljob_runtime.plugins import Factory, Registry
from rljob_runtime.trackers.registry import TRACKERS
from rljob_runtime.training.losses.registry import LOSSES
from rljob_runtime.training.registry import BACKENDS

KINDS: Mapping[str, type[BaseModel]] = {"RLJob": RLJob, "RolloutPool": RolloutPool, "Site": Site}
"""The kinds of objects, by their names."""


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """One field.

    Attributes:
        path: from the object on, without list indices: `spec.rollout.pools.name`; empty for the object itself.
        type: as `kubectl explain` writes it: `string`, `[]Object`, `map`.
        description: in one line.
        required: it has no default and may not be left out.
        default: as JSON; empty if there is none, or it is absence.
        allowed: values, if no others are possible.
        offered: names that rljob itself offers, where installed distributions may offer others.
        bounds: of a number, of the length of a text or a list, in words.
        rules: of the field, and between the fields of an object: what is refused, and what to write instead.
        immutable: why it stays as it was when the object was created; empty if it may change.
        owner: the plug-in whose option it is, as `engine vLLM`; empty for fields of the API.
        children: the fields of an object, or of the objects in a list.
    """

    path: str
    type: str
    description: str
    required: bool = False
    default: str = ""
    allowed: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    immutable: str = ""
    owner: str = ""
    children: tuple[FieldEntry, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    def walk(self) -> Iterator[FieldEntry]:
        """The field and all below it, in the order of the models."""
        yield self
        for child in self.children:
            yield from child.walk()


_PLUGINS: Mapping[str, tuple[Registry[Any], str]] = {
    "spec.rollout.engine": (ENGINES, "engine"),
    "spec.rollout.pools.engine": (ENGINES, "engine"),
    "spec.rollout.lengthPredictor": (LENGTH_PREDICTORS, "length predictor"),
    "spec.trainer": (BACKENDS, "backend"),
    "spec.trackers": (TRACKERS, "tracker"),
}
"""Objects whose `options` are those of a plug-in."""
_OFFERS: Mapping[str, Registry[Any]] = {
    "spec.rollout.engine.name": ENGINES,
    "spec.rollout.lengthPredictor.name": LENGTH_PREDICTORS,
    "spec.trainer.backend": BACKENDS,
    "spec.algorithm.loss": LOSSES,
    "spec.trackers.name": TRACKERS,
}
"""Fields whose values are names of plug-ins."""


@cache
def tree(kind: str = "RLJob") -> FieldEntry:
    """The fields of an object of that kind."""
    model = KINDS[kind]
    schema = model.model_json_schema(by_alias=True)
    root = _Reading(schema.get("$defs", {})).entry("", schema, required=True)
    return _with_plugins(root) if kind == "RLJob" else root


def options_of(model: type[BaseModel], path: str, owner: str) -> tuple[FieldEntry, ...]:
    """The options that a plug-in declares.

    Args:
        model: of its options.
        path: the field in which a manifest gives them.
        owner: the plug-in, as `engine vLLM`.
    """
    schema = model.model_json_schema(by_alias=True)
    root = _Reading(schema.get("$defs", {})).entry(path, schema, required=False)
    return tuple(_owned(child, owner) for child in root.children)


def _owned(entry: FieldEntry, owner: str) -> FieldEntry:
    return replace(entry, owner=owner, children=tuple(_owned(child, owner) for child in entry.children))


def built_in_options(registry: Registry[Any]) -> dict[str, type[BaseModel]]:
    """The model of the options of each plug-in that rljob itself offers, by name."""
    found: dict[str, type[BaseModel]] = {}
    for name in registry.offers():
        factory = registry.built_in(name)
        if isinstance(factory, Factory) and factory.options is not None:
            found[name] = factory.options
    return found


def _with_plugins(entry: FieldEntry) -> FieldEntry:
    children = tuple(_with_plugins(child) for child in entry.children)
    parent, _, name = entry.path.rpartition(".")
    if name == "options" and parent in _PLUGINS:
        registry, noun = _PLUGINS[parent]
        children = tuple(
            option
            for plugin, model in built_in_options(registry).items()
            for option in options_of(model, entry.path, f"{noun} {plugin}")
        )
    offered = tuple(_OFFERS[entry.path].offers()) if entry.path in _OFFERS else ()
    return replace(entry, children=children, offered=offered)


# ------------------------------------------------------------------------------------------------ look-up

_INDEX = re.compile(r"\[[^\]]*\]")


def find(asked: str) -> tuple[str, list[FieldEntry]]:
    """The kind of an object, and the fields of that path: several, if several engines have the option.

    Args:
        asked: a path; it may begin with a kind (`site.spec.link`), leave out `spec.`, and have list indices.

    Raises:
        SpecError: there is no such field; the message has the nearest ones.
    """
    kind, path = _kind_and_path(_INDEX.sub("", asked.strip()).strip("."))
    fields = list(tree(kind).walk())
    found = [field for field in fields if field.path == path]
    if not found and not path.startswith(("spec", "status", "metadata")):
        found = [field for field in fields if field.path == f"spec.{path}"]
    if found:
        return kind, found
    raise SpecError(asked, f"{kind} has no such field{_nearest(path, fields)}")


def _kind_and_path(path: str) -> tuple[str, str]:
    first, _, rest = path.partition(".")
    for kind in KINDS:
        if first.lower() in {kind.lower(), f"{kind.lower()}s"}:
            return kind, rest
    return "RLJob", path


def _nearest(path: str, fields: list[FieldEntry]) -> str:
    """Of the fields those with that name, whatever its case, else those whose name or path resembles it."""
    name, folded = path.rpartition(".")[2].lower().replace("_", ""), path.lower().replace("_", "")
    paths = list(dict.fromkeys(field.path for field in fields if field.path))
    near = [candidate for candidate in paths if candidate.lower() in {folded, f"spec.{folded}"}]
    near = near or [candidate for candidate in paths if candidate.rpartition(".")[2].lower() == name]
    if not near:
        alike = nearest(name, {candidate.rpartition(".")[2] for candidate in paths}, cutoff=0.75)
        near = [candidate for candidate in paths if candidate.rpartition(".")[2] in alike]
    by_whole = difflib.SequenceMatcher(b=folded)

    def likeness(candidate: str) -> float:
        by_whole.set_seq1(candidate.lower())
        return -by_whole.ratio()

    if near:
        return f": did you mean {' or '.join(sorted(near, key=likeness)[:3])}?"
    parent = _parent(path, paths)
    below = [candidate.rpartition(".")[2] for candidate in paths if candidate.rpartition(".")[0] == parent]
    return f": {parent or 'it'} has {', '.join(dict.fromkeys(below))}"


def _parent(path: str, paths: list[str]) -> str:
    """The innermost object on the path that exists and has fields."""
    known = {candidate.rpartition(".")[0] for candidate in paths}
    for whole in (path, f"spec.{path}"):
        steps = whole.split(".")
        for count in range(len(steps) - 1, 0, -1):
            if (parent := ".".join(steps[:count])) in known:
                return parent
    return ""


# ------------------------------------------------------------------------------------------------ schema

_TYPES = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
_BOUNDS = {
    "minimum": "at least {:.10g}",
    "exclusiveMinimum": "more than {:.10g}",
    "maximum": "at most {:.10g}",
    "exclusiveMaximum": "less than {:.10g}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxLength": "at most {} characters",
    "minLength": "at least {} characters",
}
_WIDE = {"maximum": 2**31 - 1}
"""Bounds that only say how large a number Kubernetes can hold."""


class _Reading:
    """Reads a JSON schema, whose definitions are given, as pydantic writes it for our models."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def entry(self, path: str, node: Mapping[str, Any], *, required: bool) -> FieldEntry:
        node, nullable = self._resolved(node)
        inner = node
        if node.get("type") == "array":
            inner, _ = self._resolved(node["items"])
        needed = inner.get("required", ())
        children = tuple(
            self.entry(f"{path}.{name}" if path else name, child, required=name in needed)
            for name, child in inner.get("properties", {}).items()
        )
        rules = tuple(
            rule["message"]
            for part in {id(node): node, id(inner): inner}.values()
            for rule in part.get("rules", ())
        )
        default = node.get("default")
        return FieldEntry(
            path,
            _type(node, inner),
            " ".join(str(node.get("description", "")).split()),
            required=required and not nullable and "default" not in node,
            default="" if default is None or children else json.dumps(default, ensure_ascii=False),
            allowed=tuple(map(str, node.get("enum", [node["const"]] if "const" in node else ()))),
            bounds=tuple(_bounds(node)),
            rules=rules,
            immutable=_because(node),
            children=children,
        )

    def _resolved(self, node: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The node without `$ref` and `anyOf`, and whether null is allowed; what it says itself counts most."""
        found, nullable = dict(node), False
        while "$ref" in found or "anyOf" in found:
            if "$ref" in found:
                found = {**self._definitions[found.pop("$ref").removeprefix("#/$defs/")], **found}
                continue
            choices = [choice for choice in found.pop("anyOf") if choice != {"type": "null"}]
            nullable = True
            types = " or ".join(choice["type"] for choice in choices if "type" in choice)
            found = {**choices[0], **found} if len(choices) == 1 else {**found, "type": types}
        return found, nullable


def _type(node: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    kind = str(node.get("type", "any"))
    if kind == "array":
        return f"[]{_type(inner, inner)}"
    if kind == "object":
        return "Object" if "properties" in node else "map"
    return _TYPES.get(kind, kind)


def _bounds(node: Mapping[str, Any]) -> Iterator[str]:
    for keyword, words in _BOUNDS.items():
        if keyword in node and node[keyword] != _WIDE.get(keyword):
            text = words.format(node[keyword])
            yield text.removesuffix("s") if node[keyword] == 1 and "Items" in keyword else text


def _because(node: Mapping[str, Any]) -> str:
    mark = node.get("immutable")
    if mark is None:
        return ""
    among = f" ({', '.join(mark['among'])} may replace each other)" if mark["among"] else ""
    return f"{mark['because']}{among}; to change it: {mark['instead']}"
