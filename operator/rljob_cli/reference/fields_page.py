"""The reference page of every field of the API."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_cli.manifest.fields import KINDS, FieldEntry, tree
from rljob_cli.reference.markdown import prose, row, table

_HEAD = ("field", "type", "default", "meaning")


def lines() -> Iterator[str]:
    """The page's lines."""
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
    *content, _ = table(_HEAD, rows)
    yield from content
    for child in below:
        yield from _objects(kind, child)


def _has_own_table(entry: FieldEntry) -> bool:
    return bool(entry.children) and not any(child.owner for child in entry.children)


def _title(kind: str, entry: FieldEntry) -> str:
    return f"{kind} {entry.path}"


def _anchor(kind: str, entry: FieldEntry) -> str:
    """As MkDocs and GitHub make it of the title."""
    return _title(kind, entry).lower().replace(".", "").replace(" ", "-")
