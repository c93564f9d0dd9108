"""The command `rljob explain`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_cli.exits import exit_codes

if TYPE_CHECKING:  # its plug-ins take a while to import
    from rljob_cli.manifest.fields import FieldEntry

_WIDTH = 100


def _paths(incomplete: str) -> list[str]:
    """For shell completion: the fields one level below what has been typed."""
    from rljob_cli.manifest.fields import tree

    depth = incomplete.count(".")
    paths = dict.fromkeys(field.path for field in tree().walk())
    return [path for path in paths if path.startswith(incomplete) and path and path.count(".") == depth]


def explain(
    field: Annotated[
        str,
        typer.Argument(
            help="Path of a field: spec.algorithm.loss, or algorithm.loss; a kind before it: site.spec.link.",
            show_default=False,
            autocompletion=_paths,
        ),
    ] = "",
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="List the names of all fields below.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a field of a manifest means: type, default, allowed values, and the fields below it.

    It needs no cluster, and says what `rljob validate` checks. Below `options` are those of every engine, backend or
    length predictor that comes with rljob.

    **Examples**

        rljob explain                              # what an RLJob has

        rljob explain spec.algorithm.loss

        rljob explain rollout.engine.options       # the options of every engine

        rljob explain trainer --recursive

        rljob explain site.spec.link
    """
    with exit_codes():
        from rljob_cli.manifest.fields import find

        kind, fields = find(field)
        if as_json:
            typer.echo(json.dumps([{"kind": kind, **asdict(found)} for found in fields], indent=2))
            return
        for line in _as_text(kind, fields, recursive=recursive):
            typer.echo(line)


def _as_text(kind: str, fields: Sequence[FieldEntry], *, recursive: bool) -> Iterator[str]:
    """The lines, in the manner of `kubectl explain`.

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
