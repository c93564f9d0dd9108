"""What every weight store promises; its one adapter so far is a folder."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import load_file

from rljob_core.errors import JobFailed, ProtocolViolation, SpecError, StorageRefused, WeightsRejected
from rljob_core.ports import Manifest, WeightStore
from rljob_core.records import StepCommitted
from rljob_runtime.weights_files import FilesWeightStore

TENSORS: dict[str, Any] = {
    "model.embed": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "model.norm": torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16),
    "model.scalar": torch.tensor(7.0, dtype=torch.float64),
    "model.empty": torch.zeros((0, 3)),
    "model.slice": torch.arange(10, dtype=torch.float32)[::2],
    "model.numpy": np.arange(6, dtype=np.float16).reshape(2, 3),
    "model.flag": torch.tensor([True, False]),
}


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return FilesWeightStore(f"file://{tmp_path}/weights")


def proposal(version: int, parent: str) -> StepCommitted:
    ids = (("g0.0", "g0.1"), ("g1.0",))
    return StepCommitted(version, parent, 1, 2, ids, "r" * 32, "", f"v{version}-a1")


def write(store: WeightStore, version: int, *, parent: str = "", **tensors: Any) -> Manifest:
    return store.write(
        version=version,
        parent=parent,
        proposal=proposal(version, parent),
        key=f"v{version}-a1",
        tensors=(tensors or TENSORS).items(),
    )


def file_of(tmp_path: Path, version: int) -> Path:
    return tmp_path / "weights" / f"v{version}-a1" / "weights.safetensors"


def test_what_is_written_is_read(store: WeightStore) -> None:
    written = write(store, 1, parent="p")
    manifest = store.manifest("v1-a1")
    assert manifest == written
    assert (manifest.version, manifest.parent, manifest.proposal) == (1, "p", proposal(1, "p"))
    found = dict(store.read(manifest))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        expected = torch.as_tensor(tensor)
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert torch.equal(found[name], expected)


def test_initial_model_has_no_proposal(store: WeightStore) -> None:
    store.write(version=0, parent="", proposal=None, key="v0", tensors=[("a", torch.ones(2))])
    assert store.manifest("v0").proposal is None


def test_the_file_is_a_safetensors_file(store: WeightStore, tmp_path: Path) -> None:
    manifest = write(store, 1)
    loaded = load_file(file_of(tmp_path, 1))
    assert loaded.keys() == TENSORS.keys()
    for info in manifest.tensors:
        assert torch.equal(loaded[info.name], torch.as_tensor(TENSORS[info.name]))
    codes = {i.name: i.dtype for i in manifest.tensors}
    assert (codes["model.embed"], codes["model.norm"], codes["model.numpy"]) == ("F32", "BF16", "F16")


def test_digests_are_what_the_port_says(store: WeightStore, tmp_path: Path) -> None:
    manifest = write(store, 1)
    by_name = {i.name: i.digest for i in manifest.tensors}
    assert by_name["model.embed"] == xxhash.xxh3_128_hexdigest(TENSORS["model.embed"].numpy().tobytes())
    content = json.loads((file_of(tmp_path, 1).parent / "manifest.json").read_text())
    digest = content.pop("digest")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert digest == manifest.digest == xxhash.xxh3_128_hexdigest(canonical)


def test_manifests_lists_complete_versions_in_order(store: WeightStore, tmp_path: Path) -> None:
    assert store.manifests() == []
    for version in (2, 10, 1):
        write(store, version)
    root = tmp_path / "weights"
    (root / "v3-a1").mkdir()
    (root / ".v4-a1.writing").mkdir()
    (root / "v5-a1").mkdir()
    (root / "v5-a1" / "weights.safetensors").write_bytes(b"")
    (root / "stray").write_text("")
    assert [m.version for m in store.manifests()] == [1, 2, 10]
    assert (root / "v5-a1").is_dir()  # nothing is cleared away


def test_delete_keeps_the_manifest(store: WeightStore, tmp_path: Path) -> None:
    manifest = write(store, 1)
    write(store, 2)
    store.delete("v1-a1")
    store.delete("v1-a1")
    assert store.manifest("v1-a1") == manifest
    assert [m.version for m in store.manifests()] == [2]
    with pytest.raises(WeightsRejected):
        list(store.read(manifest))
    assert not file_of(tmp_path, 1).exists()


def test_a_version_that_is_not_there(store: WeightStore) -> None:
    for key in ("v1-a1", "", ".", "..", "../x", "a/b", ".hidden"):
        with pytest.raises(WeightsRejected):
            store.manifest(key)


# ---- damage


def flip(position: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        return data[:position] + bytes([data[position] ^ 1]) + data[position:][1:]

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        flip(-1),
        flip(0),
        flip(20),
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:4],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: b"\xff" * 8 + data[8:],
    ],
)
def test_damaged_tensors_are_rejected(
    store: WeightStore, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    manifest = write(store, 1)
    path = file_of(tmp_path, 1)
    data = path.read_bytes()
    path.write_bytes(damage(data))
    assert path.read_bytes() != data
    with pytest.raises(WeightsRejected):
        list(store.read(store.manifest("v1-a1")))
    path.write_bytes(data)
    assert len(list(store.read(manifest))) == len(TENSORS)


def test_every_single_flipped_bit_of_the_tensors_is_seen(store: WeightStore, tmp_path: Path) -> None:
    manifest = write(store, 1, a=torch.arange(5.0), b=torch.arange(3.0))
    path = file_of(tmp_path, 1)
    data = path.read_bytes()
    for position in range(len(data) - 32, len(data)):
        path.write_bytes(flip(position)(data))
        with pytest.raises(WeightsRejected):
            list(store.read(manifest))


def test_a_tensor_is_not_given_out_before_it_is_verified(store: WeightStore, tmp_path: Path) -> None:
    manifest = write(store, 1, a=torch.zeros(4), b=torch.ones(4))
    path = file_of(tmp_path, 1)
    path.write_bytes(flip(-1)(path.read_bytes()))
    given = []
    with pytest.raises(WeightsRejected, match="tensor b"):
        given.extend(name for name, _ in store.read(manifest))
    reader = store.read(manifest)
    assert next(reader)[0] == "a"
    with pytest.raises(WeightsRejected):
        next(reader)


def test_an_altered_manifest_is_rejected(store: WeightStore, tmp_path: Path) -> None:
    write(store, 1)
    path = file_of(tmp_path, 1).parent / "manifest.json"
    text = path.read_text()
    for altered in (
        text.replace("g0.1", "g9.9"),
        text.replace('"version": 1', '"version": 2'),
        text[:-20],
        "",
    ):
        assert altered != text
        path.write_text(altered)
        with pytest.raises(WeightsRejected):
            store.manifest("v1-a1")
        assert store.manifests() == []


def test_tensors_of_another_version_are_rejected(store: WeightStore, tmp_path: Path) -> None:
    first = write(store, 1, a=torch.zeros(4))
    write(store, 2, a=torch.ones(4))
    file_of(tmp_path, 1).write_bytes(file_of(tmp_path, 2).read_bytes())
    with pytest.raises(WeightsRejected):
        list(store.read(first))


def test_a_manifest_copied_under_another_name_is_rejected(store: WeightStore, tmp_path: Path) -> None:
    write(store, 1)
    file_of(tmp_path, 1).parent.rename(tmp_path / "weights" / "v9-a1")
    with pytest.raises(WeightsRejected):
        store.manifest("v9-a1")
    assert store.manifests() == []


def test_a_manifest_that_names_more_than_the_file_holds(store: WeightStore) -> None:
    manifest = write(store, 1, a=torch.zeros(4))
    more = replace(manifest, tensors=(*manifest.tensors, replace(manifest.tensors[0], name="b")))
    with pytest.raises(WeightsRejected, match="other tensors"):
        list(store.read(more))


# ---- writing


def test_the_same_again_changes_nothing_and_other_weights_are_refused(
    store: WeightStore, tmp_path: Path
) -> None:
    first = write(store, 1, a=torch.zeros(4))
    before = file_of(tmp_path, 1).stat()
    assert write(store, 1, a=torch.zeros(4)) == first
    with pytest.raises(ProtocolViolation):
        write(store, 1, a=torch.ones(4))
    assert file_of(tmp_path, 1).stat().st_mtime_ns == before.st_mtime_ns
    assert [p.name for p in (tmp_path / "weights").iterdir()] == ["v1-a1"]


def test_a_writer_that_failed_half_way_leaves_nothing_that_counts(store: WeightStore, tmp_path: Path) -> None:
    def tensors() -> Any:
        yield "a", torch.zeros(4)
        raise RuntimeError("trainer died")

    with pytest.raises(RuntimeError):
        store.write(version=1, parent="", proposal=None, key="v1-a1", tensors=tensors())
    assert store.manifests() == []
    assert write(store, 1).version == 1


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses writes past this size, part-way, as it does on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_disk_that_takes_no_more_is_reported_and_earlier_versions_stay(
    store: WeightStore, tmp_path: Path
) -> None:
    first = write(store, 1)
    root = tmp_path / "weights"
    with files_of_at_most(100_000), pytest.raises(StorageRefused, match="version 2") as caught:
        write(store, 2, a=torch.ones(1_000_000))
    assert str(root / "v2-a1") in str(caught.value)
    assert store.manifests() == [first]
    assert len(list(store.read(first))) == len(TENSORS)
    assert [p.name for p in root.iterdir()] == ["v1-a1"]
    assert write(store, 2).version == 2


def test_a_root_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageRefused, match="file/weights"):
        write(FilesWeightStore(str(tmp_path / "file" / "weights")), 1)


def test_a_dtype_that_cannot_be_stored_is_named(store: WeightStore) -> None:
    with pytest.raises(JobFailed, match="complex64"):
        write(store, 1, a=torch.zeros(2, dtype=torch.complex64))


def test_another_scheme_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.weights\.uri"):
        FilesWeightStore("s3://bucket/weights")


def test_reading_manifests_loads_no_torch(store: WeightStore, tmp_path: Path) -> None:
    """A coordinator reads them, and starts fast."""
    write(store, 1)
    program = (
        "import sys; from rljob_runtime.weights_files import FilesWeightStore;"
        f"assert FilesWeightStore({str(tmp_path / 'weights')!r}).manifests()[0].version == 1;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
