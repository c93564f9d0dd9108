"""The checks can fail: with any one guard of the protocol turned off, they find it out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS

HERE = Path(__file__).parent


def checked(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "mutants.py"), *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_protocol_with_a_guard_less_is_found_out(name: str) -> None:
    done = checked(name)
    assert (done.returncode, done.stderr) == (1, ""), f"{done.stdout}{done.stderr}"
    assert done.stdout.strip()


def test_the_protocol_as_it_is_passes_the_same_checks() -> None:
    done = checked()
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}{done.stderr}"
