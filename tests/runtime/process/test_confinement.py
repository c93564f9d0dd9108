"""What a confined process can no longer do to others, by the interfaces of Landlock of older and newer kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from rljob_runtime.process.confinement import _CAPABILITIES, _leave_other_processes_alone as leave
folder, version = Path(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
libc.capset(_CAPABILITIES, bytes(24))
leave(libc, most=version)
try:
    Path(f"/proc/{os.getppid()}/environ").read_bytes()
except PermissionError:
    print("untraced")
(folder / "one" / "file").write_text("content")
try:
    (folder / "one" / "file").rename(folder / "two" / "file")
except OSError:
    print("unmoved")
print(Path("/proc/self/environ").read_bytes()[:0].decode() + "itself")
"""


@pytest.mark.parametrize("version", [1, 2, 5, 6])
def test_a_process_traces_none_outside_and_files_are_moved_as_before(tmp_path: Path, version: int) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), str(version)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    moved = [] if version > 1 else ["unmoved"]  # the first version allows no moves between folders
    assert ended.stdout.split() == ["untraced", *moved, "itself"], ended.stderr
