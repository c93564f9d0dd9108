"""`rljob crd`: the CustomResourceDefinitions as files, and whether files still say what the models say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rljob_cli.yaml_files import write_or_check

HEADER = "# Generated from the models in rljob_core/spec by `rljob crd`: change those, then `make crds`.\n"


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
    manifests = {output / name: manifest for name, manifest in files().items()}
    write_or_check(manifests, output, header=HEADER, check=check)


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
