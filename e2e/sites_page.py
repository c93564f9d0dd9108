"""The files that docs/sites.md shows, as a person copies them from it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e.console import console
from e2e.installation import MANIFESTS, ROOT

PAGE = ROOT / "docs" / "sites.md"
_BLOCK = re.compile(r"^ *```(?:conf|yaml)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_MARK = "<!-- tested by: e2e/test_sites.py -->"
_PATH = re.compile(r"# (\S+/\S+)\n")


def page_files() -> dict[str, str]:
    """The blocks of the page that begin with the path of a file, by that path."""
    found = {}
    for block in _blocks():
        if (path := _PATH.match(block)) is not None:
            found[path[1]] = block
    return found


def page_job() -> dict[str, Any]:
    """The parts of an RLJob's spec that the page shows."""
    (part,) = (block for block in _blocks() if "site: east" in block and "rollout:" in block)
    spec: dict[str, Any] = YAML(typ="safe").load(part)
    return spec


def page_command(words: str) -> str:
    """The only command of the set-up that has these words."""
    (found,) = re.findall(rf"^ *(kubectl {re.escape(words)} .*)$", PAGE.read_text(), re.MULTILINE)
    return str(found)


def page_console() -> list[tuple[str, str]]:
    """The commands that the page shows at the end of the set-up, with their output."""
    rest = PAGE.read_text().partition(_MARK)[2]
    return console(rest[: rest.index("```\n", rest.index("```console"))] + "```")


def write_page(folder: Path) -> None:
    """Write the page's files to a folder, beside the manifests, which they name."""
    (folder / "manifests").symlink_to(MANIFESTS)
    for path, text in page_files().items():
        file = folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def _blocks() -> list[str]:
    return [textwrap.dedent(block) for block in _BLOCK.findall(PAGE.read_text())]
