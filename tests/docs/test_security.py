"""SECURITY.md and docs/nats-security.md: every promise and every attack names tests, and they exist."""

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


def attacks() -> dict[str, list[str]]:
    """The named tests, by attack on the NATS server."""
    page = (ROOT / "docs/nats-security.md").read_text()
    (section,) = re.findall(r"^## Attacks, and what refuses them$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (?!attack \||-)(.+?) \| .+? \| (.+?) \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| ") - section.count("\n| attack | refused by | tests |")
    return {attack: re.findall(r"`([^`]+)`", tests) for attack, tests in rows}


def functions_of(path: Path) -> set[str]:
    """The names of a file's test functions."""
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in functions if name.startswith("test_")}


def test_every_promise_names_a_test() -> None:
    assert len(promises()) >= 15
    assert [promise for promise, tests in promises().items() if not tests] == []


def test_every_attack_names_a_test() -> None:
    assert len(attacks()) >= 15
    assert [attack for attack, tests in attacks().items() if not tests] == []


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for named in sorted(
        {test for rows in (promises(), attacks()) for tests in rows.values() for test in tests}
    ):
        path, _, name = named.partition("::")
        if not (ROOT / path).is_file() or name not in functions_of(ROOT / path):
            missing.append(named)
    assert missing == []
