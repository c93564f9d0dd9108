"""Folders of runs that come from others: what is read and written in them leads nowhere else, and waits for nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from example_job import write_job
from invocation import rljob, started

from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError
from rljob_operator.cluster.local.replace_text import replace_text


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return started(write_job(tmp_path))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere"
    file.write_text("before")
    return file


@pytest.mark.parametrize(
    "name", [".lock", "nats/.nats-server.conf.new", "metrics.jsonl", "logs/nats-server-0.log"]
)
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_no_file_of_the_folder_is_neither_opened_nor_written(
    run: RunFolder, elsewhere: Path, name: str, kind: str
) -> None:
    path = run.path / name
    path.parent.mkdir(exist_ok=True)
    if kind == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    for command in ("audit", "compare"):
        ended = rljob(command, run.path, *([run.path] if command == "compare" else []))
        assert (ended.code, len(ended.errors)) == (2, 1)
        assert f"{path}: is a link, a FIFO or a device" in ended.errors[0]
    with pytest.raises(SpecError, match="is a link, a FIFO or a device"), run.locked():
        pass
    assert elsewhere.read_text() == "before"


def test_large_parts_may_be_on_another_disk(run: RunFolder, tmp_path: Path) -> None:
    run.weights.rename(tmp_path / "weights")
    run.weights.symlink_to(tmp_path / "weights")
    run.check_plain()


def test_a_file_is_replaced_and_not_what_a_link_beside_it_leads_to(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / ".file.new").symlink_to(elsewhere)
    replace_text(tmp_path / "file", "after")
    assert ((tmp_path / "file").read_text(), elsewhere.read_text()) == ("after", "before")
