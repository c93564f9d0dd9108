"""`make demo` gives each run a folder of its own, and continues the newest one on request."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
#: In the place of `rljob`: it says what it was asked, and claims the folder as `rljob run` does.
COMMAND = """#!/bin/sh
echo "$@"
while [ $# -gt 0 ]; do
  if [ "$1" = --output ]; then mkdir -p "$2"; fi
  shift
done
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    (tmp_path / "bin" / "rljob").write_text(COMMAND)
    (tmp_path / "bin" / "rljob").chmod(0o755)
    return tmp_path


def demo(place: Path, arguments: str = "") -> list[str]:
    command = ["make", "--old-file", ".venv/.installed", "BIN=bin", f"ARGS={arguments}", "demo"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines() if not line.startswith("make")]


def test_no_run_takes_the_folder_of_another(place: Path) -> None:
    run = "run manifests/examples/chain-sum.yaml --output"
    assert demo(place) == [f"{run} runs/demo", "audit runs/demo"]
    (place / "runs" / "demo" / "kept").touch()
    said = "runs/demo stays as it is: this run goes to runs/demo-2"
    assert demo(place, "--set spec.steps=3") == [
        said, f"{run} runs/demo-2 --set spec.steps=3", "audit runs/demo-2"
    ]  # fmt: skip
    for other in ("demo-9", "demo-2024-notes.txt", "demo-3.old"):
        (place / "runs" / other).mkdir()
    assert demo(place)[1:] == [f"{run} runs/demo-3", "audit runs/demo-3"]
    assert demo(place, "--resume") == [f"{run} runs/demo-3 --resume", "audit runs/demo-3"]
    quoted = """--set 'data.promptTemplate="{{ question }}="'"""
    assert demo(place, quoted)[1].startswith(f"{run} runs/demo-4 --set data.promptTemplate=")
    assert (place / "runs" / "demo" / "kept").exists()


def test_without_a_run_there_is_none_to_resume(place: Path) -> None:
    assert demo(place, "--resume")[0].endswith("--output runs/demo --resume")


def test_clean_leaves_runs(place: Path) -> None:
    demo(place)
    subprocess.run(["make", "clean"], cwd=place, capture_output=True, check=True)
    assert (place / "runs" / "demo").is_dir()
