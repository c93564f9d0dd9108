"""Lets the reward functions that a manifest names be imported from the manifest's folder."""

from __future__ import annotations

from pathlib import Path

from rljob_runtime.process.import_path import find_modules_in


def allow_modules_beside(file: Path) -> str:
    """Let reward functions be imported from the manifest's folder; returns it."""
    return allow_modules_in(file.resolve().parent)


def allow_modules_in(path: Path) -> str:
    """Let reward functions be imported from a folder, after installed packages; returns it."""
    folder = str(path)
    find_modules_in([folder])
    return folder
