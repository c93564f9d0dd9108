"""A module that another library imports is loaded when it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_module_is_imported_by_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "seldom_used").mkdir()
    (tmp_path / "seldom_used" / "__init__.py").write_text("import rarely_needed\nnumber = 3")
    (tmp_path / "seldom_used" / "part.py").write_text("number = 4")
    (tmp_path / "rarely_needed.py").touch()
    (tmp_path / "user.py").write_text("import seldom_used\ndef use():\n    return seldom_used.number")
    program = """
import sys
from rljob_runtime.data.gym import postpone_import
postpone_import("seldom_used")
import user
assert "rarely_needed" not in sys.modules
assert user.use() == 3
assert "rarely_needed" in sys.modules
import seldom_used, seldom_used.part
assert (seldom_used.number, seldom_used.part.number, user.use()) == (3, 4, 3)
postpone_import("seldom_used")
assert sys.modules["seldom_used"] is seldom_used
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})


def test_the_tasks_of_reasoning_gym_need_no_pictures() -> None:
    """Until one is asked for whose library draws them, which is then there."""
    program = """
import sys
from rljob_runtime.data.gym import GymSource
GymSource("chain_sum", options={}, seed=1, path="spec.data")
assert "matplotlib" not in sys.modules
GymSource("game_of_life", options={}, seed=1, path="spec.data").item(0)
assert "matplotlib" in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
