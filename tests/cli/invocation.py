"""The `rljob` command as a user calls it, and what must be true of every call that it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_cli.manifest.load import load_job
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_runtime.model.identity import model_identity


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    errors: list[str]


def rljob(*arguments: str | Path) -> Ended:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Ended(result.exit_code, result.stdout, result.stderr.splitlines())


def refused(file: Path, *arguments: str | Path, output: Path | None = None) -> list[str]:
    """The messages of a `run` that was refused; neither processes nor files are left."""
    folder = output or file.parent / "out"
    before, processes = snapshot(file.parent), children()
    ended = rljob("run", file, "--output", folder, *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert all(line.startswith("error: ") for line in ended.errors), ended.errors
    assert snapshot(file.parent) == before
    assert not children() - processes
    return [line.removeprefix("error: ") for line in ended.errors]


def children() -> set[psutil.Process]:
    """Processes that this one has started; those of earlier tests may still be ending."""
    return set(psutil.Process().children(recursive=True))


def snapshot(folder: Path) -> dict[str, bytes]:
    # Python leaves compiled modules beside the manifest that reward functions are imported from.
    files = (file for file in folder.rglob("*") if "__pycache__" not in file.parts)
    return {str(file): file.read_bytes() if file.is_file() else b"" for file in files}


def started(file: Path, output: Path | None = None) -> RunFolder:
    """The folder of a run of the job, as its start left it."""
    manifest = load_job(file).model_dump(mode="json", by_alias=True)
    folder = RunFolder(output or file.parent / "out")
    folder.claim(
        Identity(
            name=manifest["metadata"]["name"],
            namespace="default",
            uid="0123",
            model=model_identity(file.parent / "model"),
            nats_url="",
            manifest=manifest,
            given=manifest,
            origin=str(file.parent),
        )
    )
    return folder


def claimed(
    file: Path, *, name: str = "sums", model: str | None = None, spec: dict[str, Any] | None = None
) -> RunFolder:
    """`out` as an earlier run of the job left it, without anything that it learned."""
    job = load_job(file)
    manifest = job.model_dump(mode="json", by_alias=True)
    manifest["spec"].update(spec or {})
    folder = RunFolder(file.parent / "out")
    folder.claim(
        Identity(
            name=name,
            namespace="default",
            uid="0123",
            model=model or model_identity(file.parent / "model"),
            nats_url="",
            manifest=manifest,
        )
    )
    return folder
