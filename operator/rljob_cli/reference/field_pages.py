"""The reference pages of every field of the API, and of every option of what comes with rljob."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rljob_cli.manifest.fields import KINDS, FieldEntry, built_in_options, options_of, tree
from rljob_runtime.engines.registry import ENGINES
from rljob_runtime.lengths.registry import LENGTH_PREDICTORS
from rljob_runtime.plugins import Registry
from rljob_runtime.trackers.registry import TRACKERS
from rljob_runtime.training.registry import BACKENDS

_HEAD = ("field", "type", "default", "meaning")


def fields() -> Iterator[str]:
    """The page of every field of the API."""
    yield "# Fields of the API"
    yield ""
    yield "Every field of a manifest and of a status, as `rljob explain` and `kubectl explain` describe them. Types"
    yield "are those of JSON: `[]Object` is a list of objects, `map` any mapping. A field without a default may be"
    yield "absent."
    yield "[The options](options.md) of engines, backends and length predictors have a page of their own;"
    yield "[api.md](../api.md) describes validation and immutable fields."
    for kind in KINDS:
        for part in tree(kind).children:
            if part.name in {"spec", "status"}:
                yield from _objects(kind, part)


def _objects(kind: str, entry: FieldEntry) -> Iterator[str]:
    """An object with its fields, and then the objects below it."""
    yield ""
    yield f"## {_title(kind, entry)}"
    yield ""
    if entry.description:
        yield prose(entry.description)
        yield ""
    for rule in entry.rules:
        yield f"- {prose(rule)}"
    if entry.rules:
        yield ""
    below = [child for child in entry.children if _has_own_table(child)]
    rows = [row(child, f"#{_anchor(kind, child)}" if child in below else "") for child in entry.children]
    yield from table(_HEAD, rows)
    for child in below:
        yield from _objects(kind, child)


def _has_own_table(entry: FieldEntry) -> bool:
    return bool(entry.children) and not any(child.owner for child in entry.children)


def _title(kind: str, entry: FieldEntry) -> str:
    return f"{kind} {entry.path}"


def _anchor(kind: str, entry: FieldEntry) -> str:
    """As MkDocs and GitHub make it of the title."""
    return _title(kind, entry).lower().replace(".", "").replace(" ", "-")


_ROOMS: tuple[tuple[str, str, Registry[Any], str, str], ...] = (
    ("Engine", "spec.rollout.engine", ENGINES, "engines.md", "`name`; pools may override options."),
    ("Backend", "spec.trainer", BACKENDS, "training.md", "`backend`."),
    ("Length predictor", "spec.rollout.lengthPredictor", LENGTH_PREDICTORS, "lengths.md", "`name`."),
    ("Tracker", "spec.trackers", TRACKERS, "trackers.md", "`name`."),
)  # fmt: skip


def options() -> Iterator[str]:
    """The page of the options of every engine, trainer backend, length predictor and tracker of rljob itself."""
    yield "# Options of engines, backends, length predictors and trackers"
    yield ""
    yield "A plug-in that you install declares its own options ([custom.md](../custom.md)); these are those that come"
    yield "with rljob. A null, or an option that is left out, has the default."
    for noun, path, registry, page, chosen in _ROOMS:
        for name, model in built_in_options(registry).items():
            yield ""
            yield f"## {noun} {name}"
            yield ""
            found = options_of(model, f"{path}.options", f"{noun} {name}")
            if not found:
                yield "It has no options."
                continue
            yield f"`{path}.options`; the {noun.lower()} is chosen by {chosen} More: [{page}](../{page})."
            yield ""
            entries = [entry for option in found for entry in option.walk()]
            yield from table(
                ("option", "type", "default", "meaning"),
                [(f"`{entry.path.removeprefix(f'{path}.options.')}`", *row(entry)[1:]) for entry in entries],
            )


# ------------------------------------------------------------------------------------------ tables


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def prose(text: str) -> str:
    """Text of a description: what Markdown or HTML would read as markup is shown as it is."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def row(field: FieldEntry, link: str = "") -> tuple[str, str, str, str]:
    """Name, type, default and meaning of a field.

    Args:
        field: of the API, or an option.
        link: where its own fields are listed; empty if it has none.
    """
    name = f"[`{field.name}`]({link})" if link else f"`{field.name}`"
    default = "**required**" if field.required else f"`{field.default}`" if field.default else ""
    return name, field.type.replace("[", "\\["), default, " ".join(_meaning(field))


def _meaning(field: FieldEntry) -> Iterator[str]:
    if field.description:
        yield prose(field.description)
    if field.allowed:
        yield f"One of {', '.join(f'`{value}`' for value in field.allowed)}."
    if field.bounds:
        yield f"Must be {', '.join(field.bounds)}."
    if field.immutable:
        yield f"*Cannot be changed later, because {prose(field.immutable)}.*"
