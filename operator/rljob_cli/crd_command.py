"""`rljob crd`: the CustomResourceDefinitions as files, and whether files still say what the models say."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from rljob_cli.run_folder import differences
from rljob_operator.cluster.local.replace_text import replace_text

_HEADER = "# Generated from the models in rljob_core/spec by `rljob crd`: change those, then `make crds`.\n"


def crd(
    output: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("crds"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if a file is not up to date.")
    ] = False,
) -> None:
    """Write the CustomResourceDefinitions, one file each, and a kustomization of them.

    They are made from the very models by which `rljob validate` checks a manifest, so both refuse the same.

    **Examples**

        rljob crd --output crds && kubectl apply --server-side -k crds

        rljob crd --check
    """
    manifests = files()
    if check:
        wrong = [text for name, manifest in manifests.items() for text in _drift(output / name, manifest)]
        for text in wrong:
            typer.echo(f"error: {text}", err=True)
        if wrong:
            typer.echo("to write them again: make crds", err=True)
            raise typer.Exit(1)
        typer.echo(f"{output}: up to date")
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, manifest in manifests.items():
            replace_text(output / name, as_yaml(manifest))
            typer.echo(f"wrote {output / name}")
    except OSError as error:
        typer.echo(f"error: --output: {error.filename} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(2) from error


def files() -> dict[str, dict[str, Any]]:
    """What is written, by the file's name: the CRDs, and what lets `kubectl apply -k` find them."""
    from rljob_operator.crd.definitions import crds

    manifests = crds()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(manifests),
    }
    return {**manifests, "kustomization.yaml": kustomization}


class _Plain(RoundTripRepresenter):
    """YAML that readers of 1.1 and of 1.2 understand alike, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  what it is overrides
        """Write what occurs twice twice."""
        return True

    def represent_float(self, data: float) -> Any:
        """With a dot: to YAML 1.1, 1e-06 is text."""
        text = repr(data)
        return self.represent_scalar(
            "tag:yaml.org,2002:float", text if "." in text else text.replace("e", ".0e")
        )


_Plain.add_representer(float, _Plain.represent_float)


def as_yaml(manifest: Mapping[str, Any]) -> str:
    """A generated file's text."""
    yaml = YAML()
    yaml.Representer = _Plain
    yaml.default_flow_style = False
    yaml.width = 4096  # never fold: it leaves blanks at line ends
    text = io.StringIO()
    yaml.dump(manifest, text)
    return _HEADER + text.getvalue()


def _drift(file: Path, manifest: Mapping[str, Any]) -> list[str]:
    """What of a file is not as the models say."""
    try:
        text = file.read_text(encoding="utf-8")
        found = YAML(typ="safe", pure=True).load(text)
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        return [f"{file}: cannot be read: {error}"]
    changed = [
        f"{file}: {path}: {_shown(before)} in the file, {_shown(now)} by the models"
        for path, before, now in differences(found, manifest)
    ]
    if not changed and text != as_yaml(manifest):
        return [f"{file}: has the same content in other words"]
    return changed


def _shown(value: object) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else f"{text[:77]}…"
