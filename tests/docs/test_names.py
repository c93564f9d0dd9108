"""One name means one thing: no two modules of the product define a class, or an alias of types, of the same name.

A leading underscore makes no other name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PRODUCT = ("operator", "workers")
BESIDE = ("tests", "bench", "e2e")
TAKEN = {
    "EmulatedOptions",
    "Figures",
    "Manifest",
    "Progress",
    "Refused",
    "Stopped",
    "Stream",
    "TorchOptions",
}
"""Names that stood for several things; beside the product, none of them is given to anything."""


def named(module: ast.Module) -> Iterator[str]:
    """Classes and aliases, such as `Action = Apply | Delete`, without a leading underscore.

    A constant is written in capitals.
    """
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                yield name.lstrip("_")
            case ast.Assign(targets=[ast.Name(id=name)]):
                word = name.lstrip("_")
                if word[:1].isupper() and not word.isupper():
                    yield word


def places(folders: Iterable[str]) -> dict[str, list[str]]:
    """The files that define each name."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for file in (CHECKOUT / folder).rglob("*.py"):
            for name in named(ast.parse(file.read_text(encoding="utf-8"))):
                found[name].append(str(file.relative_to(CHECKOUT)))
    return found


def test_no_name_stands_for_two_things() -> None:
    product = places(PRODUCT)
    assert len(product) > 300
    assert {name: files for name, files in product.items() if len(files) > 1} == {}


def test_tests_give_no_taken_name_to_anything_else() -> None:
    beside = places(BESIDE)
    assert len(beside) > 100
    assert {name: files for name, files in beside.items() if name in TAKEN} == {}
