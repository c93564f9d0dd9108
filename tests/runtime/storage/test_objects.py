"""Object stores through fsspec: how one is opened, written to on a real S3 server, and what its errors become."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.buckets import s3_bucket

from rljob_core.errors import SpecError, StorageRefused, StoreUnavailable
from rljob_runtime.storage.objects import PART_BYTES, is_object_store, object_store, reading, upload


@pytest.mark.parametrize(
    ("uri", "expected"),
    [("s3://bucket/weights", True), ("gs://bucket", True), ("file:///weights", False), ("weights", False)],
)
def test_a_uri_names_an_object_store_or_a_path(uri: str, expected: bool) -> None:
    assert is_object_store(uri) is expected


def test_a_scheme_that_is_not_supported() -> None:
    with pytest.raises(SpecError, match=r"^spec.weights.uri: ftp:// is not supported"):
        object_store("ftp://bucket/weights", field="spec.weights.uri")


@pytest.mark.parametrize(("scheme", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, scheme: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SpecError) as caught:
        object_store(f"{scheme}://bucket/weights", field="spec.weights.uri")
    assert str(caught.value) == (
        f"spec.weights.uri: {scheme}:// needs the package {package}: run pip install 'rljob[{extra}]'"
    )


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Any, str]]:
    """A file system of an S3 server, and a bucket on it."""
    with s3_bucket("models") as uri:
        yield object_store(uri, field="spec.weights.uri")


def test_an_object_has_what_was_written(place: tuple[Any, str]) -> None:
    files, bucket = place
    data = bytes(range(256)) * (PART_BYTES // 256) + b"a second part"
    with upload(files, f"{bucket}/whole") as writer:
        writer.write(data)
        writer.write(memoryview(b"the end"))
        writer.close()
    assert files.cat_file(f"{bucket}/whole") == data + b"the end"


def test_a_writer_that_fails_leaves_no_object(place: tuple[Any, str]) -> None:
    files, bucket = place

    def fail() -> None:
        with upload(files, f"{bucket}/failed") as writer:
            writer.write(bytes(PART_BYTES + (4 << 20)))  # a part of it is there by now
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    gc.collect()  # what is freed must not complete it
    files.invalidate_cache()
    assert not files.exists(f"{bucket}/failed")
    assert files.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", []) == []


def test_a_bucket_that_does_not_exist_refuses_objects(place: tuple[Any, str]) -> None:
    files, bucket = place

    def write() -> None:
        with upload(files, f"{bucket}-other/object") as writer:
            writer.write(b"data")
            writer.close()

    with pytest.raises(StorageRefused, match=f"^{bucket}-other/object: "):
        write()


def test_an_object_that_does_not_exist_is_no_fault_of_the_store(place: tuple[Any, str]) -> None:
    files, bucket = place
    with pytest.raises(FileNotFoundError), reading("object"):
        files.cat_file(f"{bucket}/nothing")
    with (
        pytest.raises(StoreUnavailable, match=r"^object cannot be read: no route to host$"),
        reading("object"),
    ):
        raise RuntimeError("no route to host")  # as low-level as it comes
