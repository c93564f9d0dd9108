"""The places of backups: a folder, and a bucket of a real S3 server."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.buckets import s3_bucket

from rljob_cli.backup.place import BackupPlace, StoredFile, open_place, verified
from rljob_core.errors import BackupDamaged, SpecError, StorageRefused, StoreUnavailable


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("backups") as uri:
        yield uri


@pytest.fixture(params=["folder", "file URI", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BackupPlace:
    match request.param:
        case "folder":
            uri = str(tmp_path / "made" / "when written to")
        case "file URI":
            uri = (tmp_path / "backup").as_uri()
        case _:
            uri = f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return open_place(uri)


def test_files_are_written_whole_listed_read_replaced_and_deleted(place: BackupPlace) -> None:
    assert place.paths() == []
    large = [b"a" * (6 << 20), memoryview(b"b" * (6 << 20)), b"c"]
    stored = place.write("weights/v1/tensors", large)
    content = b"".join(bytes(part) for part in large)
    assert stored == StoredFile(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    place.write("index.json", [b"one"])
    place.write("empty", [])
    assert sorted(place.paths()) == ["empty", "index.json", "weights/v1/tensors"]
    assert b"".join(verified(place, "weights/v1/tensors", stored)) == content
    place.write("index.json", [b"another"])
    assert b"".join(place.read("index.json")) == b"another"
    assert b"".join(place.read("empty")) == b""
    place.delete("weights/v1/tensors")
    place.delete("weights/v1/tensors")
    assert sorted(place.paths()) == ["empty", "index.json"]


def test_a_file_whose_source_breaks_off_changes_nothing(place: BackupPlace) -> None:
    place.write("index.json", [b"before"])

    def broken() -> Iterator[bytes]:
        yield b"half" * (2 << 20)
        raise StoreUnavailable("gone")

    for path in ("index.json", "new"):
        with pytest.raises(StoreUnavailable, match="gone"):
            place.write(path, broken())
    assert place.paths() == ["index.json"]
    assert b"".join(place.read("index.json")) == b"before"


def test_what_is_missing_or_altered_is_damage(place: BackupPlace) -> None:
    with pytest.raises(BackupDamaged, match="missing: use another backup"):
        list(place.read("index.json"))
    stored = place.write("file", [b"content"])
    place.write("file", [b"contend"])
    with pytest.raises(BackupDamaged, match="file in the backup is not what its index names"):
        list(verified(place, "file", stored))


def test_a_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    place = open_place("s3://elsewhere/job")
    with pytest.raises((StorageRefused, StoreUnavailable), match="elsewhere/job"):
        place.write("index.json", [b"content"])


def test_other_schemes_are_refused() -> None:
    with pytest.raises(
        SpecError, match=r"TARGET: ftp:// is not supported: write a path, file://, s3:// or gs://"
    ):
        open_place("ftp://host/job")


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "linked folder"])
def test_nothing_but_files_of_the_folder_is_read(tmp_path: Path, kind: str) -> None:
    root, secret = tmp_path / "backup", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    (secret / "file").write_text("secret")
    match kind:
        case "fifo":
            os.mkfifo(root / "file")
        case "folder":
            (root / "file").mkdir()
        case "link":
            (root / "file").symlink_to(secret / "file")
        case _:
            (root / "weights").symlink_to(secret)
    place = open_place(str(root))
    with pytest.raises(BackupDamaged):
        list(place.read("weights/file" if kind == "linked folder" else "file"))


def test_a_file_is_read_no_further_than_its_size(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    stored = place.write("file", [b"12"])
    place.write("file", [b"123"])
    with pytest.raises(BackupDamaged):
        next(verified(place, "file", stored))


@pytest.mark.parametrize("kind", ["hidden file", "linked folder"])
def test_nothing_is_written_where_a_link_leads(tmp_path: Path, kind: str) -> None:
    root, other = tmp_path / "backup", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (other / "file").write_text("before")
    place = open_place(str(root))
    if kind == "hidden file":
        (root / ".file.writing").symlink_to(other / "file")
        place.write("file", [b"after"])
        assert b"".join(place.read("file")) == b"after"
    else:
        (root / "weights").symlink_to(other)
        with pytest.raises(SpecError, match="is a link that leads out of"):
            place.write("weights/key/file", [b"after"])
    assert {path.name: path.read_text() for path in other.iterdir()} == {"file": "before"}


def test_folders_may_be_nested_more_deeply_than_calls(tmp_path: Path) -> None:
    (tmp_path / ("a/" * 200)).mkdir(parents=True)
    most = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 150)
    try:
        assert open_place(str(tmp_path)).paths() == []
    finally:
        sys.setrecursionlimit(most)
