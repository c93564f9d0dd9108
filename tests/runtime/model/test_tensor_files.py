"""Tensors written one at a time: into files that safetensors and transformers read, and into the weight store."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rljob_core.errors import ProtocolViolation
from rljob_runtime.model.tensor_files import TensorLayout, TensorStream, layout_of, write_model, write_tensors
from rljob_runtime.weights.create import open_store

TENSORS = {
    "wide": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "plain": torch.arange(5.0),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(3.0),
    "narrow": torch.arange(4, dtype=torch.bfloat16),
}
LAYOUTS = [layout_of(name, tensor) for name, tensor in TENSORS.items()]


class CountedTensors:
    """Makes tensors that are only counted by whoever took them."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.most = 0

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in TENSORS.items():
            made = tensor.clone()
            self.alive.add(made)
            self.most = max(self.most, len(self.alive))
            yield name, made
            del made


def test_safetensors_reads_what_was_written_and_one_is_held_at_a_time(tmp_path: Path) -> None:
    counted = CountedTensors()
    write_tensors(tmp_path / "x.safetensors", LAYOUTS, counted.tensors(), metadata={"format": "pt"})
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(
        found[name].equal(tensor) and found[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )
    assert counted.most == 1


def test_a_large_model_becomes_several_files_and_an_index(tmp_path: Path) -> None:
    write_model(tmp_path, LAYOUTS, TENSORS.items(), file_bytes=50)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 6 * 8 + 5 * 4 + 4 + 4 * 2
    files = set(index["weight_map"].values())
    assert files == {p.name for p in tmp_path.glob("*.safetensors")}
    assert len(files) > 1
    found = {name: load_file(tmp_path / index["weight_map"][name])[name] for name in TENSORS}
    assert all(found[name].equal(tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("spoil", ["other", "fewer"])
def test_what_was_not_announced_is_not_written(tmp_path: Path, spoil: str) -> None:
    layouts = [*LAYOUTS[:1], TensorLayout("more", "F32", (2,))]
    coming = iter(list(TENSORS.items())[: 1 if spoil == "fewer" else 2])
    with pytest.raises(RuntimeError, match="more"):
        write_tensors(tmp_path / "x", layouts, coming, metadata={})


def test_the_weight_store_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    counted, store = CountedTensors(), open_store("Files", uri=str(tmp_path / "streamed"))
    streamed = store.write(
        version=1, parent="p", proposal=None, key="v1-a1", tensors=TensorStream(LAYOUTS, counted.tensors())
    )
    assert counted.most == 1
    whole = open_store("Files", uri=str(tmp_path / "whole")).write(
        version=1, parent="p", proposal=None, key="v1-a1", tensors=TENSORS.items()
    )
    assert streamed == whole
    paths = [next((tmp_path / name).rglob("*.safetensors")) for name in ("streamed", "whole")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert all(tensor.equal(TENSORS[name]) for name, tensor in store.read(streamed))
    again = store.write(
        version=1,
        parent="p",
        proposal=None,
        key="v1-a1",
        tensors=TensorStream(LAYOUTS, iter(TENSORS.items())),
    )
    assert again == streamed


def test_the_weight_store_refuses_another_order_than_a_file_has(tmp_path: Path) -> None:
    store = open_store("Files", uri=str(tmp_path))
    backwards = TensorStream(LAYOUTS[::-1], iter(reversed(TENSORS.items())))
    with pytest.raises(ProtocolViolation, match="order"):
        store.write(version=1, parent="p", proposal=None, key="v1-a1", tensors=backwards)
    assert store.manifests() == []
