"""A field of the API as `rljob explain` prints it, in the manner of `kubectl explain`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rljob_cli.manifest.fields import FieldEntry

_WIDTH = 100


def as_text(kind: str, fields: Sequence[FieldEntry], *, recursive: bool = False) -> Iterator[str]:
    """The lines.

    Args:
        kind: of the object.
        fields: of one path: one, or the option of that name of each engine that has it.
        recursive: list the names and types of all fields below instead of describing those directly below.
    """
    yield f"KIND:     {kind}"
    yield "VERSION:  rljob.dev/v1alpha1"
    for field in fields:
        yield ""
        yield from _one(field, recursive=recursive)


def _one(field: FieldEntry, *, recursive: bool) -> Iterator[str]:
    of = f" of {field.owner}" if field.owner else ""
    yield f"FIELD:    {field.path or 'the whole object'} <{field.type}>{of}"
    yield ""
    yield from _wrapped(field.description or "(no description)", "  ")
    facts = list(_facts(field))
    if facts:
        yield ""
        yield from facts
    if not field.children:
        return
    yield ""
    yield "FIELDS:"
    if recursive:
        yield from _names(field, depth=1)
        return
    for owner, group in groupby(field.children, key=lambda child: child.owner):
        if owner:
            yield f"  of {owner}:"
        for child in group:
            yield f"  {child.name} <{child.type}>{_short(child)}"
            yield from _wrapped(child.description, "    ")


def _facts(field: FieldEntry) -> Iterator[str]:
    if field.required:
        yield "  required"
    if field.default:
        yield f"  default:  {field.default}"
    if field.allowed:
        yield f"  allowed:  {', '.join(field.allowed)}"
    if field.offered:
        yield f"  offered:  {', '.join(field.offered)}"
    if field.bounds:
        yield f"  bounds:   {', '.join(field.bounds)}"
    for rule in field.rules:
        yield from _hanging("  rule:     ", rule)
    if field.immutable:
        yield from _hanging("  kept:     ", f"it cannot be changed later, because {field.immutable}")


def _hanging(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _short(field: FieldEntry) -> str:
    if field.required:
        return " -required-"
    if field.default:
        return f" (default {field.default})"
    return ""


def _names(field: FieldEntry, *, depth: int) -> Iterator[str]:
    owner = ""
    for child in field.children:
        if child.owner != owner:
            owner = child.owner
            yield f"{'  ' * depth}of {owner}:"
        yield f"{'  ' * depth}{child.name} <{child.type}>{_short(child)}"
        yield from _names(child, depth=depth + 1)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
