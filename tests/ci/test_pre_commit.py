"""The hooks of pre-commit are the checks of `make check`."""

from __future__ import annotations

import re
from pathlib import Path

from ruamel.yaml import YAML

CHECKOUT = Path(__file__).parents[2]


def essence(command: str) -> str:
    """A command without the options in which the two differ: hooks get file names, and correct what they can."""
    return re.sub(r" (--check|--fix|--force-exclude|\.)(?= |$)", "", command)


def test_each_check_has_a_hook() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    checks = [line.removeprefix("\t@").replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    config = YAML(typ="safe").load(CHECKOUT / ".pre-commit-config.yaml")
    hooks = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert len(checks) > 5
    assert list(map(essence, hooks)) == list(map(essence, checks))
