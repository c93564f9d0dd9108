"""SECURITY.md: every promise names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def promises() -> dict[str, list[str]]:
    """The named tests, by promise."""
    (section,) = re.findall(r"^## What is promised$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (?!promise \||-)(.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| ") - section.count("\n| promise | tests |")
    return {promise: re.findall(r"`([^`]+)`", tests) for promise, tests in rows}


def functions_of(path: Path) -> set[str]:
    """The names of a file's test functions."""
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in functions if name.startswith("test_")}


def test_every_promise_names_a_test() -> None:
    assert len(promises()) >= 15
    assert [promise for promise, tests in promises().items() if not tests] == []


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for named in sorted({test for tests in promises().values() for test in tests}):
        path, _, name = named.partition("::")
        if not (ROOT / path).is_file() or name not in functions_of(ROOT / path):
            missing.append(named)
    assert missing == []
