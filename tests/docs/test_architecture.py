"""docs/architecture.md draws the import rules that import-linter enforces, and lists the packages that exist."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINTER = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERED = {contract["name"]: contract for contract in LINTER["contracts"] if contract["type"] == "layers"}

Layers = list[set[str]]


def drawn() -> dict[str, Layers]:
    """Layers of each drawing, highest first, by the contract that the comment before the drawing names.

    The line `main --> roles --> engines & training` of a flowchart draws three layers, the last one of two modules.
    """
    drawings = re.findall(r"<!-- import-linter: (.+?) -->\n+```mermaid\n(.*?)```", PAGE, re.DOTALL)
    return {name: layers_of(drawing) for name, drawing in drawings}


def layers_of(drawing: str) -> Layers:
    (chain,) = [line for line in drawing.splitlines() if "-->" in line]
    return [{node.strip() for node in layer.split("&")} for layer in chain.split("-->")]


def enforced(contract: Mapping[str, Any]) -> Layers:
    """Layers of a contract, as names below the package that contains them."""
    assert len(contract.get("containers", [""])) == 1, "one drawing shows the children of one package"
    return [{name.strip("() ") for name in re.split(r"[|:]", layer)} for layer in contract["layers"]]


def test_every_layers_contract_is_drawn() -> None:
    assert drawn().keys() == LAYERED.keys()


@pytest.mark.parametrize("name", LAYERED)
def test_a_drawing_has_the_layers_of_its_contract(name: str) -> None:
    assert drawn()[name] == enforced(LAYERED[name])


def test_every_other_contract_is_listed() -> None:
    rules = PAGE[PAGE.index("## Import rules") :]
    listed = re.findall(r"^- (.+?)\.$", re.sub(r"\n  ", " ", rules), re.MULTILINE)
    others = [contract["name"] for contract in LINTER["contracts"] if contract["type"] != "layers"]
    assert [rule[0].lower() + rule[1:] for rule in listed] == others


def test_the_tables_have_every_package() -> None:
    """A row `| folder | holds |` for each package of the product, and for no other."""
    listed = re.findall(r"^\| `((?:workers|operator)/[\w/]+)` \|", PAGE, re.MULTILINE)
    packages = {
        str(file.parent.relative_to(CHECKOUT))
        for folder in ("workers", "operator")
        for file in (CHECKOUT / folder).glob("rljob_*/**/__init__.py")
    }
    assert sorted(listed) == sorted(packages)


def test_every_file_that_the_page_names_exists() -> None:
    """Paths are written from the repository, from a package's folder, or as the last part of one."""
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    exist = [
        str(file.relative_to(CHECKOUT)) for file in CHECKOUT.glob("*/**/*.py") if ".venv" not in file.parts
    ]
    assert len(named) > 20
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in exist)] == []
