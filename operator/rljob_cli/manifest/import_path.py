"""Lets the reward functions that a manifest names be imported from the manifest's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def allow_modules_beside(file: Path) -> str:
    """Let reward functions be imported from the manifest's folder; that folder, for PYTHONPATH."""
    return allow_modules_in(file.resolve().parent)


def allow_modules_in(path: Path) -> str:
    """Let reward functions be imported from a folder; that folder, for PYTHONPATH."""
    folder = str(path)
    if folder not in sys.path:
        sys.path.append(folder)
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
