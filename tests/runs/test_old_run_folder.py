"""A run folder that an earlier commit wrote can be audited, and resumed to its end; its decisions are not replayed.

`old_folders/*.tar.xz` each hold `example/`: a model, `job.yaml` and an interrupted `run/`, as `rljob run --record` left
them. They are written once, by the commit before a change that must not be seen from outside, and never again.

| archive | written by the commit before |
|---|---|
| `2026-11-before-packages` | modules became packages, and many classes got other names |
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from invocation import rljob

from runs import LiveRun, audit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OLD_FOLDERS = sorted((Path(__file__).parent / "old_folders").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", OLD_FOLDERS, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_an_old_run_folder_is_audited_and_resumed(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    example = tmp_path / "example"
    output = example / "run"
    before = audit(output)
    assert before.returncode == 0, before.stdout
    replayed = rljob("replay", output)
    assert replayed.code == 2
    assert "replay it with the release that wrote it" in str(replayed.errors)

    run = LiveRun(example / "job.yaml", output, "--resume", "--set", "spec.steps=12")
    try:
        assert run.steps() == 6  # what the archive holds: the run goes on from there, it does not start again
        assert run.wait() == 0, run.said
    finally:
        run.stop()
    after = audit(output)
    assert after.returncode == 0, after.stdout
    assert run.steps() == 12
