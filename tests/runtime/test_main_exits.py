"""How a worker's process ends: exit code 4 and what is missing outside the job, or a crash and its exception."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_config import small_config

from rljob_contract.tiny_models import tiny_model
from rljob_core.failures import Reason, failure_in

PATIENCE = 600.0  # seconds; of a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def url() -> Iterator[str]:
    """Where nobody listens, and nobody else can meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"nats://127.0.0.1:{held.getsockname()[1]}"


def start(role: str, folder: Path, model: Path, url: str, config: str = "") -> subprocess.Popen[bytes]:
    """A role's process; `config`: what its configuration file holds instead of a job that fits."""
    folder.mkdir()
    job = small_config(folder, model)
    (folder / "config.json").write_text(config or job.model_dump_json(by_alias=True))
    environment = {
        **os.environ,
        "RLJOB_CONFIG": str(folder / "config.json"),
        "RLJOB_NATS_URL": url,
        "RLJOB_POD": f"j-{role}-0",
        "RLJOB_POOL": "a",
        "RLJOB_ATTEMPT": "1",
        "RLJOB_READY_FILE": str(folder / "ready"),
        "RLJOB_TERMINATION_LOG": str(folder / "termination"),
    }
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "rljob_runtime.main", role]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def end(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """The exit code, and what stands in the termination log."""
    code = process.wait(PATIENCE)
    assert not (folder / "ready").exists()
    said = folder / "termination"
    return code, (said if said.exists() else folder / "log").read_text()


def test_a_missing_model_is_reported(tmp_path: Path, url: str) -> None:
    """Before the server is."""
    gone, roles = tmp_path / "gone", ("rollout", "reward", "trainer")
    running = {role: start(role, tmp_path / role, gone, url) for role in roles}
    for role, process in running.items():
        code, said = end(process, tmp_path / role)
        assert code == 4, said
        failure = failure_in(said)
        assert failure.reason is Reason.RESOURCE_MISSING
        assert failure.detail.startswith("spec.model.uri: ")
        assert str(gone) in said


def test_a_server_that_does_not_answer_is_waited_for(tmp_path: Path, model: Path, url: str) -> None:
    roles = ("streams", "coordinator", "rollout", "reward", "trainer")
    running = {role: start(role, tmp_path / role, model, url) for role in roles}
    for role, process in running.items():
        code, said = end(process, tmp_path / role)
        assert code == 4, said
        assert failure_in(said).reason is Reason.STREAMS_UNAVAILABLE
        assert url in said


def test_a_crash_leaves_its_exception_unless_another_process_of_the_pod_has_left_a_message(
    tmp_path: Path, model: Path, url: str
) -> None:
    running = {}
    for role in ("coordinator", "trainer"):
        running[role] = start(role, tmp_path / role, model, url, config="{")
    (tmp_path / "trainer" / "termination").write_text("what rank 0 has said")
    code, said = end(running["coordinator"], tmp_path / "coordinator")
    assert code == 1
    assert said.startswith("ValidationError: 1 validation error for JobConfig Invalid JSON")
    assert end(running["trainer"], tmp_path / "trainer") == (1, "what rank 0 has said")
