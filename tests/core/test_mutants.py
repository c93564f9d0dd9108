"""The checks can fail: with any one guard of the protocol turned off, they find it out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", MUTANTS)
def test_a_protocol_with_a_guard_less_is_found_out(name: str) -> None:
    command = [sys.executable, str(HERE / "mutants.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (1, ""), f"{done.stdout}{done.stderr}"
    assert done.stdout.strip()
