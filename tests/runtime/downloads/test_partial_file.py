"""A file that is being downloaded, and what a server that lies about its size can do to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from rljob_core.errors import StorageRefused, StoreUnavailable
from rljob_runtime.downloads.partial_file import PartialFile
from rljob_runtime.downloads.remote_file import RemoteFile

CONTENT = b"content"
FILE = RemoteFile("a", len(CONTENT), "sha256", hashlib.sha256(CONTENT).hexdigest())


def test_what_is_there_counts(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT[:3])
    received: list[int] = []
    with PartialFile(tmp_path / "a", FILE, received.append) as file:
        assert file.tell() == 3
        file.write(CONTENT[3:])
        assert file.is_whole
        assert file.is_right
    assert received == [3, 4]
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_server_that_begins_again_is_followed(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "a", FILE, lambda _: None) as file:
        file.write(b"other")
        file.seek(0)
        file.truncate()
        file.write(CONTENT)
        assert file.is_right
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_no_more_is_written_than_the_file_has(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "a", FILE, lambda _: None) as file:
        with pytest.raises(StoreUnavailable, match="more bytes of a were sent than the 7"):
            file.write(CONTENT * 2)
        assert file.size == 0


def test_what_is_too_long_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT * 2)
    with PartialFile(tmp_path / "a", FILE, lambda _: None) as file:
        assert file.size == 0


def test_a_full_disk_is_named_and_what_it_took_is_kept(tmp_path: Path) -> None:
    with (
        files_of_at_most(4),
        pytest.raises(StorageRefused, match="a: File too large"),
        PartialFile(tmp_path / "a", FILE, lambda _: None) as file,
    ):
        file.write(CONTENT)
    with PartialFile(tmp_path / "a", FILE, lambda _: None) as file:
        assert file.size == 4
        file.write(CONTENT[4:])
        assert file.is_right


def test_what_another_process_has_written_to_as_well_is_given_up(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "a", FILE, lambda _: None) as file:
        file.write(CONTENT)
        file.sync()
        with (tmp_path / "a").open("ab") as other:
            other.write(CONTENT)
        with pytest.raises(StoreUnavailable, match="another process writes to it"):
            file.sync()
        assert file.size == 0
    assert (tmp_path / "a").read_bytes() == b""
