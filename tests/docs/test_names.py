"""One name means one thing: no two modules of the product define a class, or an alias of types, of the same name.

A leading underscore makes no other name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


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


def test_no_name_stands_for_two_things() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for folder in ("operator", "workers"):
        for file in (CHECKOUT / folder).rglob("*.py"):
            for name in named(ast.parse(file.read_text(encoding="utf-8"))):
                places[name].append(str(file.relative_to(CHECKOUT)))
    assert len(places) > 300
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
