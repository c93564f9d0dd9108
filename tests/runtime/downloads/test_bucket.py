"""Models and data sets from object stores, and the files that are chosen of a data set."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.buckets import forget_s3_clients, gcs_bucket, s3_bucket
from tests.hub import running_hub

from rljob_core.errors import ResourceMissing, RLJobError, SpecError, StoreUnavailable
from rljob_core.remote_uri import RemoteSource, RemoteUri
from rljob_core.spec import DataSpec
from rljob_runtime.data.prompts import open_items
from rljob_runtime.downloads import fetch as fetching
from rljob_runtime.downloads.bucket import BucketFolder
from rljob_runtime.downloads.fetch import Fetched, fetch

WEIGHTS = os.urandom(3 << 20)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("sources") as uri:
        yield uri


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_runtime.downloads.bucket.PART_BYTES", 1 << 20)
    monkeypatch.setattr(fetching, "_PAUSE_SECONDS", 0.0)


def put(uri: str, files: dict[str, bytes]) -> str:
    from rljob_runtime.storage.s3_files import S3Files

    store = S3Files()
    for name, content in files.items():
        store.pipe_file(f"{uri.removeprefix('s3://')}/{name}", content)
    return uri


def get(uri: str, cache: Path, *, source: str = "", revision: str = "") -> Fetched:
    return fetch(RemoteSource("data", "spec.field", uri, source), cache=cache, revision=revision)


def refusal(uri: str, cache: Path, kind: type[RLJobError] = SpecError, **more: str) -> str:
    with pytest.raises(kind) as caught:
        get(uri, cache, **more)
    return str(caught.value)


def test_a_model_below_a_prefix(bucket: str, tmp_path: Path) -> None:
    uri = put(f"{bucket}/models/tiny", FILES)
    found = get(uri, tmp_path)
    assert {file.name: file.read_bytes() for file in found.path.iterdir()} == FILES
    assert get(uri, tmp_path, revision=found.revision) == found


def test_a_model_in_google_s_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_runtime.downloads.bucket.PART_BYTES", 1 << 16)
    files = {**FILES, "model.safetensors": WEIGHTS[:300_000]}
    with gcs_bucket("models") as uri:
        import fsspec

        for name, content in files.items():
            fsspec.filesystem("gs").pipe_file(f"models/tiny/{name}", content)
        found = get(f"{uri}/tiny", tmp_path)
        assert {file.name: file.read_bytes() for file in found.path.iterdir()} == files
        place = BucketFolder(RemoteUri("gs", "models/tiny"), field="f")
        assert {file.kind for file in place.with_digests(place.list(tuple)).files} == {"md5"}


def test_objects_that_change_are_no_longer_what_the_job_began_with(bucket: str, tmp_path: Path) -> None:
    uri = put(f"{bucket}/models/changed", FILES)
    began = get(uri, tmp_path).revision
    put(uri, {"model.safetensors": WEIGHTS[::-1]})
    assert get(uri, tmp_path, revision=began).revision == began  # the cache has it
    assert "has changed since this job began" in refusal(uri, tmp_path / "another", revision=began)
    assert get(uri, tmp_path).revision != began


def test_a_cut_is_continued_in_the_middle_of_an_object(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rljob_runtime.storage.s3_files import S3Files

    uri = put(f"{bucket}/models/cut", FILES)
    asked: list[int] = []
    read = S3Files._cat_file

    async def cut_once(
        self: Any, path: str, version: Any = None, start: Any = None, end: Any = None
    ) -> bytes:
        if path.endswith("model.safetensors"):
            asked.append(start or 0)
            if len(asked) == 2:
                raise OSError("the connection was cut")
        content: bytes = await read(self, path, version, start=start, end=end)
        return content

    monkeypatch.setattr(S3Files, "_cat_file", cut_once)
    forget_s3_clients()
    assert (get(uri, tmp_path).path / "model.safetensors").read_bytes() == WEIGHTS
    assert asked == [0, 1 << 20, 1 << 20, 2 << 20]


def test_content_is_compared_with_the_sums_beside_it(bucket: str, tmp_path: Path) -> None:
    sums = f"{hashlib.sha256(b'another').hexdigest()}  model.safetensors\n".encode()
    uri = put(f"{bucket}/models/sums", {**FILES, "SHA256SUMS": sums})
    assert "model.safetensors of" in refusal(uri, tmp_path, StoreUnavailable)


def test_an_object_replaced_while_it_is_read_is_not_used(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(f"{bucket}/models/replaced", FILES)
    listed = fetching.BucketFolder.list

    def and_replaced(self: Any, choose: Any) -> Any:
        listing = listed(self, choose)
        put(uri, {"model.safetensors": WEIGHTS[::-1]})
        return listing

    monkeypatch.setattr(fetching.BucketFolder, "list", and_replaced)
    assert "is not what its digest says" in refusal(uri, tmp_path, StoreUnavailable)


def in_parts(uri: str, name: str, content: bytes) -> None:
    """Upload an object in parts: its ETag is no MD5."""
    from rljob_runtime.storage.s3_files import S3Files

    store = S3Files()
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    place = {"Bucket": bucket, "Key": f"{prefix}/{name}"}
    started = store.call_s3("create_multipart_upload", **place)["UploadId"]
    part = store.call_s3("upload_part", **place, PartNumber=1, UploadId=started, Body=content)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    store.call_s3("complete_multipart_upload", **place, UploadId=started, MultipartUpload=parts)


def test_an_object_without_an_md5_that_is_replaced_while_it_is_read_is_not_used(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(f"{bucket}/models/parts", FILES)
    in_parts(uri, "model.safetensors", WEIGHTS)
    read = BucketFolder.read

    def and_replaced(self: Any, file: Any, into: Any) -> None:
        if file.name == "model.safetensors":
            assert file.kind == "none"
            in_parts(uri, "model.safetensors", WEIGHTS[::-1])
        read(self, file, into)

    with monkeypatch.context() as replaced:
        replaced.setattr(BucketFolder, "read", and_replaced)
        assert "was changed while it was downloaded" in refusal(uri, tmp_path, StoreUnavailable)
    assert not list(tmp_path.rglob("model.safetensors"))
    assert (get(uri, tmp_path).path / "model.safetensors").read_bytes() == WEIGHTS[::-1]


def test_other_objects_do_not_count(bucket: str, tmp_path: Path) -> None:
    uri = put(f"{bucket}/models/neighbours", FILES)
    rows_uri = put(f"{bucket}/tables", {"train.jsonl": LINES[0]})
    model = get(uri, tmp_path / "a").revision
    data = get(f"{rows_uri}/train.jsonl", tmp_path / "a", source="jsonl").revision
    put(uri, {"README.md": b"words", "pytorch_model.bin": b"pickle"})
    put(rows_uri, {"other.jsonl": LINES[1]})
    assert get(uri, tmp_path / "b", revision=model).revision == model
    settings = fetch(
        RemoteSource("model", "spec.field", uri), cache=tmp_path / "c", revision=model, weights=False
    )
    assert settings.revision == model
    again = get(f"{rows_uri}/train.jsonl", tmp_path / "b", source="jsonl", revision=data)
    assert again.revision == data


def test_the_empty_objects_that_a_console_makes_for_folders_are_none_of_the_files(
    bucket: str, tmp_path: Path
) -> None:
    from rljob_runtime.storage.s3_files import S3Files

    uri = put(f"{bucket}/models/folders", {**FILES, "sub/more.json": b"{}"})
    name, _, prefix = uri.removeprefix("s3://").partition("/")
    for key in (f"{prefix}/", f"{prefix}/sub/"):
        S3Files().call_s3("put_object", Bucket=name, Key=key, Body=b"")
    assert {file.name for file in get(uri, tmp_path).path.iterdir()} == set(FILES)


def test_a_reader_without_a_right_to_an_object_gets_the_remedy(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rljob_runtime.storage.s3_files import S3Files

    uri = put(f"{bucket}/models/forbidden", FILES)

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError("Forbidden")

    async def unreadable(*_: Any, **__: Any) -> None:
        raise PermissionError("Forbidden")

    for call, denial in (("call_s3", forbidden), ("_cat_file", unreadable)):
        forget_s3_clients()
        with monkeypatch.context() as denied:
            denied.setattr(S3Files, call, denial)
            assert "spec.model.credentialsSecret" in refusal(uri, tmp_path, ResourceMissing)
    forget_s3_clients()


def test_a_prefix_without_objects_and_a_bucket_that_is_not_there(bucket: str, tmp_path: Path) -> None:
    assert "holds no objects" in refusal(f"{bucket}/nothing", tmp_path)
    assert "s3://no-such-bucket-here" in refusal("s3://no-such-bucket-here/models", tmp_path)


ROWS = [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(4)]
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]


def rows(found: Fetched, source: str) -> list[str]:
    data = DataSpec.model_validate(
        {"source": source, "dataset": str(found.path)}, by_alias=True, by_name=False
    )
    items = open_items(data, "spec.data")
    return sorted(items.item(index)["answer"] for index in range(items.rows))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("train/a.jsonl", ["1"]),
        ("train/*.jsonl", ["1", "2"]),
        ("train", ["1", "2"]),
        ("*.jsonl", ["1", "2", "3"]),
    ],
)
def test_a_data_set_is_a_file_a_pattern_or_a_folder(tmp_path: Path, path: str, expected: list[str]) -> None:
    files = {
        "train/a.jsonl": LINES[0],
        "train/b.jsonl": LINES[1],
        "test/c.jsonl": LINES[2],
        "README.md": b"rows",
    }
    with running_hub() as hub:
        hub.data("acme/rows", files)
        assert rows(get(f"hf://datasets/acme/rows/{path}", tmp_path, source="jsonl"), "jsonl") == expected
        message = refusal("hf://datasets/acme/rows/none", tmp_path, source="jsonl")
    assert "no file none that ends in .jsonl is there, but README.md, test/c.jsonl" in message


def test_parquet_from_a_bucket(bucket: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, part in (("a", ROWS[:2]), ("b", ROWS[2:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{name}.parquet")
    uri = put(
        f"{bucket}/rows", {f"{name}.parquet": (tmp_path / f"{name}.parquet").read_bytes() for name in "ab"}
    )
    assert rows(get(uri, tmp_path / "cache", source="parquet"), "parquet") == ["1", "2", "3", "4"]
    assert rows(get(f"{uri}/b*.parquet", tmp_path / "cache", source="parquet"), "parquet") == ["3", "4"]
    assert rows(get(f"{uri}/a.parquet", tmp_path / "cache", source="parquet"), "parquet") == ["1", "2"]
