"""Modules of users are found, and hide no installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
from rljob_runtime.process.import_path import put_users_modules_last
put_users_modules_last()
import netrc, numpy, only_here, only_there
print(netrc.__file__, numpy.__file__, only_here.__file__, only_there.__file__, sep="\\n")
"""


def test_modules_beside_a_manifest_hide_no_others(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, own in ((here, "only_here"), (there, "only_there")):
        folder.mkdir()
        for name in ("netrc", "numpy", own):
            (folder / f"{name}.py").touch()
    (here / "program.py").write_text(_PROGRAM)
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        [sys.executable, "-m", "program"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": path, "RLJOB_MODULES": str(there)},
        capture_output=True,
        text=True,
        check=True,
    )
    *others, own, theirs = ended.stdout.splitlines()
    assert not [file for file in others if file.startswith(str(tmp_path))]
    assert (own, theirs) == (str(here / "only_here.py"), str(there / "only_there.py"))
