"""Hints name this program as the user has started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_cli.own_command import own_command


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a virtual environment that is not on the PATH."""
    program = tmp_path / "checkout" / ".venv" / "bin" / "rljob"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", [str(program), "run"])
    return tmp_path / "checkout"


def test_a_program_that_is_not_on_the_path_is_named_by_its_path(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_command("audit", "runs/my run") == ".venv/bin/rljob audit 'runs/my run'"
    monkeypatch.setattr(sys, "argv", [".venv/bin/rljob", "run"])
    assert own_command("ui") == ".venv/bin/rljob ui"
    program = str(checkout / ".venv/bin/rljob")
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.chdir("/usr/bin")
    assert own_command("ui") == f"{program} ui"


def test_one_that_is_on_the_path_is_named_as_it_is_typed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{checkout / '.venv/bin'}:/usr/bin")
    assert own_command("ui") == "rljob ui"
    other = checkout / "other" / "rljob"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:/usr/bin")
    assert own_command("ui") == ".venv/bin/rljob ui"  # another one is found there


@pytest.mark.parametrize("started", ["/usr/lib/python3/rljob_cli/main.py", "-c", "", "rljob"])
def test_one_that_was_started_in_another_way_is_named_by_its_name(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    assert own_command("ui") == "rljob ui"


def test_the_command_says_how_it_continues_as_it_was_started(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("rljob")
    done = subprocess.run(
        [program, "init", "job.yaml", "--model", str(Path(__file__).parents[2] / "manifests/examples/models/chain-sum"),
         "--data", "chain_sum"],
        cwd=tmp_path, env={**os.environ, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"next: {program} validate job.yaml && {program} run job.yaml" in done.stdout
