"""The package of docs/custom.md, written out and installed as its readers would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "custom.md").read_text(encoding="utf-8")
#: A file's name stands in backquotes at the end of the paragraph before its text.
_BLOCK = re.compile(r"(?:`([\w./]+\.\w+)`(?: \([^)]*\))?:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, str]:
    """The page's blocks by the name of their file; those that are no file by their language."""
    return {name or language: text for name, language, text in _BLOCK.findall(PAGE)}


def install_package(folder: Path) -> Path:
    """Write the package into a folder and install it, without a network, into another beside it; that one."""
    source, target = folder / "bigrams", folder / "installed"
    for name, text in blocks().items():
        if "." in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text, encoding="utf-8")
    (source / "rljob_bigrams" / "__init__.py").touch()
    uv = str(Path(sys.executable).parent / "uv")
    options = [
        "--offline",
        "--no-deps",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--target",
        str(target),
    ]
    done = subprocess.run(
        [uv, "pip", "install", *options, str(source)],
        env={**os.environ, "UV_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target
