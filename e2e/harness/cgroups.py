"""A control group of its own for each node, under which its kubelet keeps its pods.

Two kubelets with one root would each kill the other's pods as orphans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def make(name: str) -> None:
    """Make the group, in every hierarchy where there are several (cgroup v1)."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if (enabled := hierarchy / "cgroup.subtree_control").exists():
            controllers = (hierarchy / "cgroup.controllers").read_text().split()
            for folder in (hierarchy, group):
                for controller in controllers:  # one by one: some may not be ours to hand on
                    with suppress(OSError):
                        (folder / enabled.name).write_text(f"+{controller}")
        for setting in ("cpuset.mems", "cpuset.cpus"):  # version 1 gives a new group no processor at all
            if (group / setting).exists() and not (group / setting).read_text().strip():
                (group / setting).write_text((hierarchy / setting).read_text())


def remove(prefix: str, *, seconds: float = 10.0) -> bool:
    """Remove all groups whose names begin so, as soon as their processes are gone. Returns whether all are."""
    deadline = time.monotonic() + seconds
    while True:
        groups = [group for hierarchy in _hierarchies() for group in hierarchy.glob(f"{prefix}*")]
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()
        left = [group for group in groups if group.exists()]
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(0.1)


def _hierarchies() -> Iterator[Path]:
    if (_ROOT / "cgroup.controllers").exists():  # version 2
        yield _ROOT
    else:
        yield from (path for path in sorted(_ROOT.iterdir()) if path.is_dir() and not path.is_symlink())
