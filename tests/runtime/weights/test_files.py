"""Weights as files: what other programs read of them, and what a file system may do to us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from full_disk import files_of_at_most
from pydantic import TypeAdapter
from safetensors.torch import load_file

from rljob_core.errors import SpecError, StorageRefused, StoreUnavailable, WeightsRejected
from rljob_core.ports import WeightManifest
from rljob_runtime.weights import files as weights_files
from rljob_runtime.weights.create import open_store
from rljob_runtime.weights.format import parse_manifest, signed
from rljob_runtime.weights.store import StoredWeights

TENSORS = {
    "embed": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "norm": torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7.0, dtype=torch.float64),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def store(root: Path) -> StoredWeights:
    return open_store("Files", uri=f"file://{root}")


def write(
    store: StoredWeights, version: int, tensors: dict[str, Any] | None = None, parent: str = ""
) -> WeightManifest:
    return store.write(
        version=version,
        parent=parent,
        proposal=None,
        key=f"v{version}-a",
        tensors=(tensors or TENSORS).items(),
    )


def test_the_file_is_a_safetensors_file(store: StoredWeights, root: Path) -> None:
    manifest = write(store, 1)
    loaded = load_file(root / "v1-a" / "weights.safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(loaded[name], torch.as_tensor(tensor))
    codes = {i.name: i.dtype for i in manifest.tensors}
    assert codes == {"embed": "F32", "norm": "BF16", "half": "F16", "scalar": "F64"}


def test_a_delta_is_a_safetensors_file_too(root: Path) -> None:
    store = open_store("Files", uri=str(root), anchor_every=5)
    first = write(store, 1, {"a": torch.zeros(100), "b": torch.zeros(2), "c": torch.ones(3)})
    changed = torch.zeros(100)
    changed[3] = 1
    write(store, 2, {"a": changed, "b": torch.ones(2), "c": torch.ones(3)}, first.digest)
    loaded = load_file(root / "v2-a" / "weights.safetensors")
    assert {name: (t.dtype, tuple(t.shape)) for name, t in loaded.items()} == {
        "a": (torch.uint8, (17,)),
        "b": (torch.float32, (2,)),
    }


def test_what_is_no_version_is_passed_over(store: StoredWeights, root: Path) -> None:
    write(store, 1)
    for folder in ("v3", ".v4.writing", "v5"):
        (root / folder).mkdir()
    (root / "v5" / "weights.safetensors").write_bytes(b"")
    (root / "stray").write_text("")
    assert [m.version for m in store.manifests()] == [1]
    assert (root / "v5").is_dir()  # nothing is cleared away


def test_a_version_appears_by_one_rename(store: StoredWeights, root: Path) -> None:
    seen = []

    def tensors() -> Iterator[tuple[str, Any]]:
        yield "a", torch.ones(3)
        seen.extend(p.name for p in root.glob("v*"))

    store.write(version=1, parent="", proposal=None, key="v1-a", tensors=tensors())
    assert seen == []
    assert [p.name for p in root.iterdir()] == ["v1-a"]


def test_a_disk_that_takes_no_more_is_reported_and_earlier_versions_stay(root: Path) -> None:
    store = open_store("Files", uri=str(root), anchor_every=5)
    first = write(store, 1)
    with files_of_at_most(100_000), pytest.raises(StorageRefused, match="version 2") as caught:
        write(store, 2, {"a": torch.ones(1_000_000)})
    assert str(root / "v2-a") in str(caught.value)
    assert store.manifests() == [first]
    assert len(list(store.read(first))) == len(TENSORS)
    assert [p.name for p in root.iterdir()] == ["v1-a"]
    assert write(store, 2, parent=first.digest).version == 2
    assert len(list(open_store("Files", uri=str(root)).read(store.manifest("v2-a")))) == len(TENSORS)


def test_a_root_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageRefused, match="file/weights"):
        write(open_store("Files", uri=str(tmp_path / "file" / "weights")), 1)


def test_a_file_system_that_does_not_let_us_look_is_no_missing_version(
    store: StoredWeights, root: Path
) -> None:
    manifest = write(store, 1)
    for name in ("weights.safetensors", "manifest.json"):
        path = root / "v1-a" / name
        path.rename(root / name)
        path.symlink_to(path)  # the kernel gives up on it
        with pytest.raises(StoreUnavailable, match=name):
            _ = list(store.read(manifest)) if name == "weights.safetensors" else store.manifest("v1-a")
        path.unlink()
        (root / name).rename(path)
    assert len(list(store.read(manifest))) == len(TENSORS)
    (root / "v1-a" / "weights.safetensors").unlink()
    with pytest.raises(WeightsRejected):
        list(store.read(manifest))


def test_another_scheme_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"spec\.weights\.uri: ftp:// is not supported: write a path, file://"
    ):
        open_store("Files", uri="ftp://host/weights")


def test_reading_manifests_loads_no_torch(store: StoredWeights, root: Path) -> None:
    """A coordinator reads them, and starts fast."""
    write(store, 1)
    program = (
        "import sys; from rljob_runtime.weights.create import open_store;"
        f"assert open_store('Files', uri={str(root)!r}).proposals(0)[0].version == 1;"
        "assert 'torch' not in sys.modules and 'fsspec' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_files_are_mapped_on_file_systems_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = weights_files.file_system(tmp_path.stat().st_dev)
    assert here
    assert weights_files.file_system(os.makedev(4095, 1)) == ""
    transport = weights_files.FolderTransport(tmp_path)
    with transport.writer("v1") as writer:
        writer.write(b"12345678")
        writer.commit(b"{}")
    for known, kind in (({here}, weights_files.MappedReader), (set(), weights_files.FolderReader)):
        monkeypatch.setattr(weights_files, "_OF_THIS_MACHINE", known)
        with transport.reader("v1") as reader:
            assert type(reader) is kind
            assert (reader.size, reader.take(3).tobytes()) == (8, b"123")
            with pytest.raises(WeightsRejected, match="incomplete"):
                reader.take(6)


@pytest.mark.parametrize(
    "changes",
    [{"shape": (-1, 3)}, {"shape": (0, 10**30)}, {"shape": (1,) * 9}, {"patch": -1}, {"patch": 10**15}],
    ids=str,
)
def test_a_tensor_that_cannot_be_is_refused(
    store: StoredWeights, root: Path, changes: dict[str, Any]
) -> None:
    manifest = write(store, 1)
    forged = signed(replace(manifest, tensors=(replace(manifest.tensors[0], **changes),)))
    (root / "v1-a" / "manifest.json").write_bytes(TypeAdapter(WeightManifest).dump_json(forged))
    with pytest.raises(WeightsRejected, match="an impossible"):
        store.manifest("v1-a")


def test_a_manifest_beyond_its_limit_is_not_read(store: StoredWeights, root: Path) -> None:
    write(store, 1)
    with (root / "v1-a" / "manifest.json").open("r+b") as file:
        file.truncate(10 << 30)
    with pytest.raises(WeightsRejected, match=r"v1-a cannot be used: .* has more than"):
        store.manifest("v1-a")


@pytest.mark.parametrize("text", [b"[" * 200_000, b" " * 200_000 + b"{}"], ids=["nested", "long"])
def test_a_header_that_cannot_be_is_refused(store: StoredWeights, root: Path, text: bytes) -> None:
    manifest = write(store, 1)
    tensors = root / "v1-a" / "weights.safetensors"
    tensors.write_bytes(len(text).to_bytes(8, "little") + text + bytes(1000))
    with pytest.raises(WeightsRejected, match="not a safetensors file"):
        list(store.read(manifest))


@pytest.mark.parametrize("key", ["../../v1-a", "/etc", "v1.*", ""])
def test_a_manifest_names_nothing_outside_of_the_weights(key: str) -> None:
    manifest = {"key": "v2-a", "version": 2, "parent": "", "tensors": [], "proposal": None, "digest": ""}
    base = {"key": key, "digest": "", "depth": 0}
    for changed in ({"key": key}, {"base": base}):
        with pytest.raises(WeightsRejected, match="is not the key of a version"):
            parse_manifest(json.dumps(manifest | changed).encode(), "v2-a")
