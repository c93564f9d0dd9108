"""Files that commands generate from code, and whether files still say what the code says."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from rljob_cli.manifest.differences import differences
from rljob_operator.cluster.local.replace_text import replace_text

CheckOption = Annotated[
    bool, typer.Option("--check", help="Write nothing; exit with 1 if a file is not up to date.")
]
_WITH_FIELDS = {".yaml", ".json"}


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
    files: Mapping[Path, str], output: Path, *, check: bool, left: Sequence[Path] = ()
) -> None:
    """Write the files, or only check that they are up to date.

    Args:
        files: the text of each.
        output: the file, or the files' folder, as the user named it.
        check: write nothing.
        left: files that are there and come from nothing any more; they are removed.

    Raises:
        typer.Exit: with 1, a file is not up to date; with 2, one cannot be written.
    """
    if check:
        wrong = [text for file, made in files.items() for text in _drift(file, made)]
        wrong += [f"{file}: comes from no manifest" for file in left]
        for text in wrong:
            typer.echo(f"error: {text}", err=True)
        if wrong:
            typer.echo(f"to write {'it' if len(files) == 1 else 'them'} again: make crds", err=True)
            raise typer.Exit(1)
        typer.echo(f"{output}: up to date")
        return
    try:
        for file in left:
            file.unlink()
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, text)
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


def _drift(file: Path, made: str) -> list[str]:
    """What of a file is not as it would be written now: its fields, where it has any."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"{file}: cannot be read: {error}"]
    if text == made:
        return []
    fields: list[str] = []
    if file.suffix in _WITH_FIELDS:
        with suppress(YAMLError, ValueError, TypeError):  # a template of Helm, or damaged
            found, now = (YAML(typ="safe", pure=True).load(one) for one in (text, made))
            fields = [
                f"{file}: {path}: {_shown(before)} in the file, {_shown(after)} by the code"
                for path, before, after in differences(found, now)
            ]
    return fields or [f"{file}: is not as the code has it"]


def _shown(value: object) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else f"{text[:77]}…"
