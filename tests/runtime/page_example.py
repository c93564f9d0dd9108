"""The example of a page: one program, and what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def check_example(page: str, folder: Path) -> None:
    """Run the page's program in a folder: it must print what the page shows."""
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (folder / "try_it.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "try_it.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == shown
