"""Optimizer state in files: written by any number of ranks, read by any other."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rljob_core.errors import JobFailed
from rljob_runtime.training.optimizer_state import Elements, SavedState, write_state

SHAPES = {"a": (7, 3), "b": (5,), "c": ()}


def whole(kind: str, name: str) -> Tensor:
    """What stands for one kind of a parameter, flat."""
    size = max(1, int(torch.tensor(SHAPES[name]).prod()) if SHAPES[name] else 1)
    return torch.arange(size, dtype=torch.float32) + zlib.crc32(f"{kind} {name}".encode()) % 97


def elements(rank: int, ranks: int) -> list[Elements]:
    """A rank's equal part of each parameter; the last ranks may have none."""
    parts = []
    for name in SHAPES:
        size = len(whole("m", name))
        per = -(-size // ranks)
        first, end = min(size, rank * per), min(size, (rank + 1) * per)
        values = {kind: whole(kind, name)[first:end].clone() for kind in ("exp_avg", "exp_avg_sq", "weight")}
        parts.append(Elements(name, first, values.pop("weight"), values))
    return parts


def write(folder: Path, *, ranks: int, masters: bool = False) -> None:
    for rank in range(ranks):
        write_state(
            folder,
            elements(rank, ranks),
            rank=rank,
            ranks=ranks,
            shapes=SHAPES,
            steps=5,
            masters=masters,
            random=torch.tensor([rank, 1, 2], dtype=torch.uint8),
        )


@pytest.mark.parametrize("written", [1, 2, 3, 8])
@pytest.mark.parametrize("read", [1, 2, 5])
def test_any_number_of_ranks_reads_what_any_wrote(tmp_path: Path, written: int, read: int) -> None:
    write(tmp_path, ranks=written)
    for rank in range(read):
        mine, expected = elements(rank, read), elements(rank, read)
        for part in mine:
            for values in part.moments.values():
                values.fill_(-1)
        with SavedState(tmp_path, shapes=SHAPES) as saved:
            saved.take_into(mine, dtype=torch.float32)
            assert (saved.steps, saved.masters, saved.random.tolist()) == (5, False, [0, 1, 2])
        for part, right in zip(mine, expected, strict=True):
            assert all(values.equal(right.moments[kind]) for kind, values in part.moments.items())


def test_a_wide_weight_stands_only_where_it_rounds_to_the_one_that_is_loaded(tmp_path: Path) -> None:
    shapes = {"a": (3,)}
    saved_weight = torch.tensor([1.001, 2.001, 3.001])
    part = Elements("a", 0, saved_weight, {})
    write_state(
        tmp_path,
        [part],
        rank=0,
        ranks=1,
        shapes=shapes,
        steps=1,
        masters=True,
        random=torch.zeros(1, dtype=torch.uint8),
    )
    loaded = torch.tensor([1.0, 2.0, 4.0])  # the third was trained on since
    with SavedState(tmp_path, shapes=shapes) as saved:
        saved.take_into([Elements("a", 0, loaded, {})], dtype=torch.bfloat16)
    torch.testing.assert_close(loaded, torch.tensor([1.001, 2.001, 4.0]))


@pytest.mark.parametrize("spoil", ["gone", "torn", "other", "fifo", "words", "none", "shape", "fewer"])
def test_what_does_not_fit_is_refused_before_anything_is_taken(tmp_path: Path, spoil: str) -> None:
    write(tmp_path, ranks=3)
    path = tmp_path / "optimizer-00001.safetensors"
    shapes = dict(SHAPES)
    if spoil == "gone":
        path.unlink()
    elif spoil == "torn":
        path.write_bytes(path.read_bytes()[:-3])
    elif spoil == "other":
        path.write_bytes(b"text")
    elif spoil == "fifo":
        path.unlink()
        os.mkfifo(path)
    elif spoil == "words":  # in place of shapes
        written = json.dumps(json.dumps(SHAPES)).encode()
        path.write_bytes(path.read_bytes().replace(written, b'"[]"'.ljust(len(written))))
        assert written not in path.read_bytes()
    elif spoil == "none":
        for each in tmp_path.iterdir():
            each.unlink()
    elif spoil == "shape":
        shapes["a"] = (3, 7)
    else:
        del shapes["b"]
    with pytest.raises(JobFailed, match=str(tmp_path)):
        SavedState(tmp_path, shapes=shapes)


def test_ranges_that_leave_a_gap_are_refused(tmp_path: Path) -> None:
    first, *others = elements(0, 1)
    short = Elements(first.name, 0, first.weight, {k: v[:-1] for k, v in first.moments.items()})
    write_state(
        tmp_path,
        [short, *others],
        rank=0,
        ranks=1,
        shapes=SHAPES,
        steps=1,
        masters=False,
        random=torch.zeros(1, dtype=torch.uint8),
    )
    with pytest.raises(JobFailed, match="20 of 21 elements of a"):
        SavedState(tmp_path, shapes=SHAPES)
