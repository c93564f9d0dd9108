"""YAML files that commands generate from code, and whether files still say what the code says."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from rljob_cli.manifest.differences import differences
from rljob_operator.cluster.local.replace_text import replace_text


class _Plain(RoundTripRepresenter):
    """YAML that readers of 1.1 and of 1.2 understand alike, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  what it is overrides
        """Write what occurs twice twice."""
        return True

    def represent_str(self, data: str) -> Any:
        """Text of several lines as a block."""
        if "\n" in data:
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="|")
        return super().represent_str(data)

    def represent_float(self, data: float) -> Any:
        """With a dot: to YAML 1.1, 1e-06 is text."""
        text = repr(data)
        return self.represent_scalar(
            "tag:yaml.org,2002:float", text if "." in text else text.replace("e", ".0e")
        )


_Plain.add_representer(str, _Plain.represent_str)
_Plain.add_representer(float, _Plain.represent_float)


def write_or_check(
    files: Mapping[Path, Mapping[str, Any]], output: Path, *, header: str, check: bool
) -> None:
    """Write the files, or only check that they are up to date.

    Args:
        files: what each file says.
        output: the file, or the files' folder, as the user named it.
        header: comment at the beginning of each.
        check: write nothing.

    Raises:
        typer.Exit: with 1, a file is not up to date; with 2, one cannot be written.
    """
    if check:
        wrong = [text for file, manifest in files.items() for text in drift(file, manifest, header)]
        for text in wrong:
            typer.echo(f"error: {text}", err=True)
        if wrong:
            typer.echo(f"to write {'it' if len(files) == 1 else 'them'} again: make crds", err=True)
            raise typer.Exit(1)
        typer.echo(f"{output}: up to date")
        return
    try:
        for file, manifest in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, as_yaml(manifest, header))
            typer.echo(f"wrote {file}")
    except OSError as error:
        typer.echo(f"error: --output: {error.filename} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(2) from error


def as_yaml(manifest: Mapping[str, Any], header: str) -> str:
    """A generated file's text, after a comment that says what it is generated from."""
    yaml = YAML()
    yaml.Representer = _Plain
    yaml.default_flow_style = False
    yaml.width = 4096  # never fold: it leaves blanks at line ends
    text = io.StringIO()
    yaml.dump(manifest, text)
    return header + text.getvalue()


def drift(file: Path, manifest: Mapping[str, Any], header: str) -> list[str]:
    """What of a file is not as it would be written now."""
    try:
        text = file.read_text(encoding="utf-8")
        found = YAML(typ="safe", pure=True).load(text)
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        return [f"{file}: cannot be read: {error}"]
    changed = [
        f"{file}: {path}: {_shown(before)} in the file, {_shown(now)} by the code"
        for path, before, now in differences(found, manifest)
    ]
    if not changed and text != as_yaml(manifest, header):
        return [f"{file}: has the same content in other words"]
    return changed


def _shown(value: object) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else f"{text[:77]}…"
