"""Makes files survive a crash of the machine: first their content, then the folders that hold their names."""

from __future__ import annotations

import os
from pathlib import Path


def create_folder(folder: Path) -> None:
    """Create a folder, and its parents where they do not exist, durably; without effect if it exists."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder: a new or renamed file is durable only once the folder with its name is."""
    _sync(folder)


def sync_file(file: Path) -> None:
    """Sync a file's content."""
    _sync(file)


def sync_tree(folder: Path) -> None:
    """Sync every file below a folder, and the folders, the inner ones first; what links lead to is left alone."""
    for parent, _, files in os.walk(folder, topdown=False):
        for path in (Path(parent) / name for name in files):
            if not path.is_symlink():  # it has no content, and its name is its folder's
                _sync(path)
        _sync(Path(parent))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
