"""Where no command can run: it says so in a line, whatever the command is."""

from __future__ import annotations

from pathlib import Path

import pytest
from invocation import rljob

from rljob_cli.main import refusal


@pytest.mark.parametrize(
    ("arguments", "folder", "address_space", "says"),
    [
        (["run", "job.yaml"], "/home", -1, ""),
        (["run", "job.yaml"], "/home", 4 << 30, ""),
        (["run", "job.yaml"], "/home", 600 << 20, "raise the limit (ulimit -v"),
        (["run", "--output", "b\udcff"], "/home", -1, "is no UTF-8"),
        (["audit", "out"], "/home/b\udcff", -1, "is no UTF-8"),
        (["audit", "out"], None, -1, "change to another one"),
    ],
)
def test_what_no_command_can_do(
    arguments: list[str], folder: str | None, address_space: int, says: str
) -> None:
    why = refusal(arguments, folder, address_space)
    assert (says in why) if says else not why


@pytest.mark.parametrize("path", ["a/" * 2100, "n" * 300, "job.yaml/out"])
@pytest.mark.parametrize(
    "command", [["run", "job.yaml", "--output"], ["audit"], ["patch", "--set", "steps=7"]]
)
def test_a_path_that_no_file_can_have_is_bad_input(
    command: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from example_job import write_job

    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    ended = rljob(*command, path)
    assert ended.code == 2, ended
    assert ended.errors
    assert all(line.startswith("error: ") for line in ended.errors)
