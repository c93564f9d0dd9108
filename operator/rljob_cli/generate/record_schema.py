"""`rljob record-schema`: the JSON schema of what a job stores, for auditors, and whether the file is up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rljob_cli.manifest.differences import differences
from rljob_operator.cluster.local.replace_text import replace_text

FILE = Path("docs/design/records.schema.json")


def record_schema(
    output: Annotated[Path, typer.Option(help="The file.")] = FILE,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if the file is not up to date.")
    ] = False,
) -> None:
    """Write the JSON schema of a job's ledger, payload headers, rewards, announcements, manifests and trainer's log.

    It is made from the types by which rljob itself reads and writes them.
    """
    schema = records()
    if not check:
        replace_text(output, as_text(schema))
        typer.echo(f"wrote {output}")
        return
    try:
        text = output.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        typer.echo(f"error: {output}: cannot be read: {error}", err=True)
        raise typer.Exit(1) from error
    if text != as_text(schema):
        for path, _, _ in differences(found, schema):
            typer.echo(f"error: {output}: {path}: is not as the code has it", err=True)
        typer.echo("to write it again: make crds", err=True)
        raise typer.Exit(1)
    typer.echo(f"{output}: up to date")


def records() -> dict[str, Any]:
    """One schema whose `$defs` has a definition for each kind of stored content, by the name of its type."""
    from pydantic import TypeAdapter

    from rljob_core.messages import RewardResult, VersionAnnounced
    from rljob_core.ports import WeightManifest
    from rljob_core.records import FedMicroBatch, RecordBatch
    from rljob_runtime.messaging.summaries import PayloadSummary

    stored = (RecordBatch, FedMicroBatch, WeightManifest, RewardResult, VersionAnnounced, PayloadSummary)
    _, schema = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in stored], title="What a job of rljob stores"
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def as_text(schema: dict[str, Any]) -> str:
    """The file's content."""
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
