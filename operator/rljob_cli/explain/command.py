"""The command `rljob explain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rljob_cli.exits import exit_codes


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
        from rljob_cli.explain.text import as_text
        from rljob_cli.manifest.fields import find

        kind, fields = find(field)
        if as_json:
            typer.echo(json.dumps([{"kind": kind, **asdict(found)} for found in fields], indent=2))
            return
        for line in as_text(kind, fields, recursive=recursive):
            typer.echo(line)
