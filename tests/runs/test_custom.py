"""docs/custom.md: its package installs, keeps the contracts, and trains."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from custom_package import blocks, install_package
from ruamel.yaml import YAML

from rljob_contract.tiny_models import tiny_model
from runs import RLJOB, LiveRun, audit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(tmp_path_factory.mktemp("package"))


@pytest.fixture
def path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed for the processes that a test starts."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    )
    monkeypatch.setenv("COLUMNS", "200")


def test_its_files_are_short() -> None:
    lengths = {name: len(text.splitlines()) for name, text in blocks().items() if name.endswith(".py")}
    assert lengths.keys() == {
        f"rljob_bigrams/{name}.py" for name in ("model", "engine", "backend", "loss", "reward")
    }
    assert max(lengths.values()) <= 60
    assert lengths["rljob_bigrams/loss.py"] <= 20


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("command", re.findall(r"^\$ rljob (.*)$", blocks()["console"], re.MULTILINE))
def test_the_checks_say_what_the_page_shows(command: str, tmp_path: Path) -> None:
    (shown,) = re.findall(
        rf"^\$ rljob {re.escape(command)}\n(.*?)(?=^\$|\Z)", blocks()["console"], re.MULTILINE | re.DOTALL
    )
    done = subprocess.run(
        [RLJOB, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.rstrip() for line in done.stdout.splitlines()]
    assert said[-len(shown.splitlines()) :] == shown.splitlines()


@pytest.fixture
def run(tmp_path: Path, path: None) -> Iterator[LiveRun]:
    tiny_model(tmp_path / "model")
    (tmp_path / "job.yaml").write_text(blocks()["yaml"])
    run = LiveRun(tmp_path / "job.yaml", tmp_path / "run")
    yield run
    run.stop()


def test_a_job_of_engine_backend_and_reward_trains_and_its_audit_is_clean(run: LiveRun) -> None:
    assert run.wait() == 0, run.said[-3000:] + run.logs()
    steps = int(YAML(typ="safe", pure=True).load(blocks()["yaml"])["spec"]["steps"])
    assert run.summary()["steps"] == steps
    lines = map(json.loads, (run.output / "metrics.jsonl").read_text().splitlines())
    rewards = [line["reward_mean"] for line in lines if line["reward_mean"] is not None]
    assert len(rewards) == steps
    assert rewards[0] < 0.4
    assert rewards[-1] > 0.8
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_the_loss_trains_a_model_and_its_audit_is_clean(tmp_path: Path, path: None) -> None:
    tiny_model(tmp_path / "model")
    (tmp_path / "job.yaml").write_text(blocks()["yaml"])
    program, command, manifest, _, output, *settings = shlex.split(blocks()["sh"].replace("\\\n", " "))
    assert (program, command) == ("rljob", "run")
    (tmp_path / output).parent.mkdir()
    run = LiveRun(tmp_path / manifest, tmp_path / output, *settings)
    try:
        assert run.wait() == 0, run.said[-3000:] + run.logs()
        assert run.summary()["steps"] == 3
        verdict = audit(run.output)
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    finally:
        run.stop()
