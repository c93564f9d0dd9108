"""What CI runs exists: targets of the Makefile, commands of the workflows; and a commit's draws can be repeated."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests import draw

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PLANS = ["commit", "nightly"]


def plan(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / ".ci" / f"{name}.toml").read_text())


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", PLANS)
def test_every_suite_is_a_target(name: str) -> None:
    for suite in plan(name)["suite"].values():
        make, target, *_ = shlex.split(suite["command"])
        assert make == "make"
        assert target in targets()


def test_nightly_leaves_out_nothing_that_a_commit_runs() -> None:
    commit, nightly = (
        {suite["command"] for suite in plan(name)["suite"].values()} for name in ("commit", "nightly")
    )
    assert commit <= nightly


def test_the_page_has_the_time_of_every_suite() -> None:
    page = (ROOT / "docs" / "development.md").read_text()
    lanes = {name: lane["name"] for lane in plan("commit")["lane"] for name in lane["suites"]}
    either = "|".join(set(lanes.values()))
    rows = dict(re.findall(rf"^\| ([a-z0-9]+)(?: \([^|]*\))? \| ({either}) \|", page, re.MULTILINE))
    assert rows == lanes


def test_every_folder_of_tests_is_of_a_suite() -> None:
    """`make test` runs the test paths without those that other targets run."""
    text = (ROOT / "Makefile").read_text()
    apart = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "norecursedirs"
    ]
    for folder in (name for name in apart if name.startswith("tests/")):
        assert re.search(rf"pytest (tests/\w+ )*{folder}\b", text)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(path: Path) -> None:
    workflow = YAML(typ="safe", pure=True).load(path.read_text())
    assert workflow["on"]
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        commands = [step["run"] for step in job["steps"] if "run" in step]
        files = [
            word for command in commands for word in shlex.split(command) if re.fullmatch(r"[.e].*/.*", word)
        ]
        assert [file for file in files if not (ROOT / file).exists()] == []
        assert {
            target for command in commands for target in re.findall(r"\bmake ([a-z-]+)", command)
        } <= targets()
        cached = [step["with"]["path"] for step in job["steps"] if "actions/cache" in step.get("uses", "")]
        assert cached == ([] if path.stem == "renovate" else ["~/.cache/uv", "~/.cache/rljob"])


def test_what_the_workflows_run() -> None:
    ci, nightly, _ = (path.read_text() for path in WORKFLOWS)
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml", "renovate.yml"]
    assert "bash .ci/run" in ci
    assert {"push", "pull_request"} <= set(YAML(typ="safe", pure=True).load(ci)["on"])
    assert "make nightly" in nightly
    assert nightly.index("make cve-snapshot") < nightly.index("make cve-scan ARGS=--complete")
    assert "schedule" in YAML(typ="safe", pure=True).load(nightly)["on"]


# ---------------------------------------------------------------------------------------------- draws


def drawn(**environment: str) -> str:
    code = "from tests.draw import chance, draw; print(draw('a', range(100), 5), chance('b').random())"
    known = {name: value for name, value in os.environ.items() if name not in {draw.SEED, draw.ALL}}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=known | environment, capture_output=True, text=True, check=True
    ).stdout


def test_one_seed_draws_the_same_in_every_process() -> None:
    assert drawn(RLJOB_TEST_SEED="x") == drawn(RLJOB_TEST_SEED="x") != drawn(RLJOB_TEST_SEED="y")


def test_the_commit_is_the_seed() -> None:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert drawn() == drawn(RLJOB_TEST_SEED=done.stdout.strip() or "no commit")


def test_all_cases_can_be_asked_for() -> None:
    assert drawn(RLJOB_TEST_ALL="1").startswith("range(0, 100)") or drawn(RLJOB_TEST_ALL="1").startswith(
        "[0, 1, 2"
    )


SWEEP = """
import pytest

@pytest.mark.drawn("a sweep", 2)
@pytest.mark.parametrize("number", range(6))
def test_number(number): ...

@pytest.mark.drawn("a sweep", 2)
def test_word(): ...

@pytest.mark.nightly
def test_long(): ...

def test_always(): ...
"""


def collected(folder: Path, **environment: str) -> list[str]:
    """The tests of `SWEEP` that run."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  drawn\n  nightly\n")
    (folder / "conftest.py").write_text(
        "from tests import draw\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    draw.leave_out(config, items)\n"
    )
    (folder / "test_sweep.py").write_text(SWEEP)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    known = {name: value for name, value in os.environ.items() if name not in {draw.SEED, draw.ALL}}
    known["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, cwd=folder, env=known | environment, capture_output=True, text=True, check=True
    )
    return re.findall(r"^test_sweep.py::(\S+)", done.stdout, re.MULTILINE)


def test_of_a_sweep_of_tests_a_commit_runs_some(tmp_path: Path) -> None:
    runs = {tuple(collected(tmp_path, RLJOB_TEST_SEED=seed)) for seed in ("x", "x", "y", "z")}
    assert len(runs) > 1, "all commits draw the same"
    assert all(len(names) == 3 and "test_always" in names and "test_long" not in names for names in runs)
    assert len(collected(tmp_path, RLJOB_TEST_ALL="1")) == 9
