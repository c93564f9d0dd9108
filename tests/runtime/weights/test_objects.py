"""Weights on an object store: a real S3 server, and one that fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.buckets import s3_bucket

from rljob_core.errors import StorageRefused, StoreUnavailable
from rljob_runtime.weights.create import open_store
from rljob_runtime.weights.objects import ObjectTransport
from rljob_runtime.weights.store import StoredWeights


class Away(MemoryFileSystem):
    """A file system that can be cut off."""

    cachable = False
    away = False

    def _check(self) -> None:
        if self.away:
            raise RuntimeError("no route to host")  # as low-level as it comes

    def cat_file(self, *arguments: Any, **options: Any) -> bytes:
        self._check()
        return super().cat_file(*arguments, **options)

    def pipe_file(self, *arguments: Any, **options: Any) -> None:
        self._check()
        super().pipe_file(*arguments, **options)

    def find(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().find(*arguments, **options)


def test_a_store_that_does_not_answer() -> None:
    files = Away()
    store = StoredWeights(ObjectTransport(files, f"/{uuid4().hex}/weights"))
    manifest = store.write(version=1, parent="", proposal=None, key="v1-a", tensors=[("a", torch.ones(3))])
    files.away = True
    for ask in (lambda: store.manifest("v1-a"), lambda: list(store.read(manifest)), store.manifests):
        with pytest.raises(StoreUnavailable, match="no route to host"):
            ask()
    files.away = False
    with store._transport.writer("v2-a") as writer:
        writer.write(b"tensors")
        files.away = True
        with pytest.raises(StorageRefused, match="no route to host"):
            writer.commit(b"manifest")
    files.away = False
    assert store.manifests() == store.proposals(0) == [manifest]
    assert store._transport.listing() == {"v1-a": True}  # no manifest, no version
    assert store._transport.unfinished() == ["v2-a"]
    store.sweep(2)
    assert store._transport.unfinished() == []
    assert len(list(store.read(manifest))) == 1
    store.close()


# ------------------------------------------------------------------------------------------ a real server


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket on an S3 server."""
    with s3_bucket("models") as uri:
        yield f"{uri}/runs/weights"


def test_versions_on_s3(bucket: str) -> None:
    writer = open_store("Files", uri=bucket, anchor_every=3)
    assert writer.manifests() == writer.proposals(0) == []
    tensors = {"large": torch.randn(4_500_000), "small": torch.randn(5)}  # more than one part
    manifests = []
    for version in range(4):
        tensors["large"] = tensors["large"].clone()
        tensors["large"][version::1000] += 1
        manifests.append(
            writer.write(
                version=version,
                parent=manifests[-1].digest if manifests else "",
                proposal=None,
                key=f"v0000000{version}-a",
                tensors=tensors.items(),
            )
        )
    assert [m.base is None for m in manifests] == [True, False, False, True]
    reader = open_store("Files", uri=bucket)
    assert reader.manifests() == manifests
    assert reader.proposals(1) == manifests[2:]
    found = dict(reader.read(manifests[3]))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert torch.equal(dict(reader.read(manifests[2]))["small"], tensors["small"])
    writer.delete("v00000003-a")
    writer.delete("v00000003-a")
    assert reader.manifests() == manifests[:3]
    assert reader.proposals(2) == manifests[3:]
    writer.close()
    reader.close()


def test_a_missing_bucket(bucket: str) -> None:
    store = open_store("Files", uri=bucket.replace("models", "others"))
    assert store.manifests() == []
    with pytest.raises(StorageRefused, match=r"others-.*/runs/weights/v1-a"):
        store.write(version=1, parent="", proposal=None, key="v1-a", tensors=[("a", torch.ones(3))])
    store.close()
