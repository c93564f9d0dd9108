"""Optimizer state in a checkpoint: flat ranges of every parameter, for any number of ranks and any backend.

Each rank writes its elements into a safetensors file of its own, `optimizer-00000.safetensors`: tensors named
`<kind>:<first>:<parameter>`, flat, where `first` is the flat index of the first element and the kinds are the
optimizer's moments (`exp_avg`, `exp_avg_sq`) and `master`, the float32 weights of a job that computes in bfloat16. The
header says how many such files there are, how many steps were taken, and every parameter's shape. A rank that loads a
checkpoint reads the ranges that it needs from the files that have them.

A saved master weight is used only if it rounds to the weight that was loaded: the state may be older than the weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rljob_core.errors import CheckpointDamaged
from rljob_runtime.model.tensor_files import TensorLayout, layout_of, write_tensors
from rljob_runtime.storage.plain_files import open_plain

MASTER = "master"
RANDOM = "random"
_FORMAT = "rljob-optimizer-1"

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Elements:
    """A range of one parameter's elements, as one rank's optimizer holds them.

    Attributes:
        name: of the parameter, as it is published.
        first: flat index of the first element.
        weight: [n], what the optimizer updates; a view.
        moments: [n] each, the optimizer's state by its name; views.
    """

    name: str
    first: int
    weight: Tensor
    moments: Mapping[str, Tensor]


def write_state(
    folder: Path,
    elements: Sequence[Elements],
    *,
    rank: int,
    ranks: int,
    shapes: Shapes,
    steps: int,
    masters: bool,
    random: Tensor,
) -> None:
    """Write one rank's file.

    Args:
        folder: of the checkpoint.
        elements: what the rank holds.
        rank: its number.
        ranks: how many such files there will be.
        shapes: of all parameters in training.
        steps: that the optimizer took.
        masters: whether to save the weights that it updates too.
        random: uint8, torch's random state.
    """

    def named() -> Iterator[tuple[str, Tensor]]:
        for part in elements:
            held = {**part.moments, MASTER: part.weight} if masters else part.moments
            for kind, values in held.items():
                yield f"{kind}:{part.first}:{part.name}", values.detach()
        yield RANDOM, random

    layouts: list[TensorLayout] = [layout_of(name, values) for name, values in named()]
    write_tensors(
        folder / f"optimizer-{rank:05d}.safetensors",
        layouts,
        ((name, values.cpu()) for name, values in named()),
        metadata={
            "format": _FORMAT,
            "ranks": str(ranks),
            "steps": str(steps),
            "shapes": json.dumps({name: list(shape) for name, shape in shapes.items()}),
        },
    )


class SavedState:
    """A checkpoint's optimizer state, read range by range.

    Args:
        folder: of the checkpoint.
        shapes: of the parameters in training.

    Attributes:
        steps: that the optimizer took.
        masters: whether it holds the optimizer's own weights.
        random: uint8, torch's random state of rank 0.

    Raises:
        CheckpointDamaged: it does not load, is of another model, or is not complete; nothing was taken.
    """

    def __init__(self, folder: Path, *, shapes: Shapes) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._ranges: dict[tuple[str, str], list[tuple[int, int, Any, str]]] = {}
        self.steps, self.masters = 0, False
        self.random = torch.empty(0, dtype=torch.uint8)
        try:
            self._open(shapes)
        except BaseException:
            self._stack.close()
            raise

    def _open(self, shapes: Shapes) -> None:
        paths = sorted(self._folder.glob("optimizer-*.safetensors"))
        if not paths:
            raise CheckpointDamaged(f"checkpoint {self._folder} does not load: it holds no optimizer state")
        try:
            for path in paths:
                open_plain(path, within=self._folder).close()  # the library would wait for a FIFO
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                metadata = file.metadata() or {}
                saved = json.loads(metadata["shapes"])
                self.steps, ranks = int(metadata["steps"]), int(metadata["ranks"])
                if ranks != len(paths) or metadata["format"] != _FORMAT:
                    raise CheckpointDamaged(
                        f"checkpoint {self._folder} is not complete: {ranks} ranks wrote it"
                    )
                if not isinstance(saved, dict):
                    raise TypeError("its shapes are no mapping")
                if len(saved) != len(shapes) or any(
                    saved.get(name) != list(shape) for name, shape in shapes.items()
                ):
                    raise CheckpointDamaged(self._of_another(saved, shapes))
                self._index(file)
        except (SafetensorError, FileNotFoundError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointDamaged(f"checkpoint {self._folder} does not load: {error}") from error
        self.masters = any(kind == MASTER for kind, _ in self._ranges)
        self._check_complete(shapes)

    def _index(self, file: Any) -> None:
        for key in file.keys():  # noqa: SIM118  a method
            if key != RANDOM:
                kind, first, name = key.split(":", 2)
                (count,) = file.get_slice(key).get_shape()
                self._ranges.setdefault((kind, name), []).append((int(first), count, file, key))
            elif not len(self.random):
                self.random = file.get_tensor(RANDOM)
                if self.random.dtype != torch.uint8:
                    raise ValueError("its random state is no bytes")

    def _of_another(self, saved: Shapes, own: Shapes) -> str:
        differing = sorted(n for n in {*saved, *own} if list(saved.get(n, ())) != list(own.get(n, ())))
        name = differing[0] if differing else ""
        there, here = (list(shapes[name]) if name in shapes else "missing" for shapes in (saved, own))
        return (
            f"checkpoint {self._folder} holds the optimizer state of another model: {name} is {there} there, {here} "
            "here. Name the model and the adapters that the job began with"
        )

    def _check_complete(self, shapes: Shapes) -> None:
        kinds = {kind for kind, _ in self._ranges}
        for name, shape in shapes.items():
            size = math.prod(shape)
            for kind in kinds:
                held = sum(count for _, count, _, _ in self._ranges.get((kind, name), ()))
                if held != size:
                    raise CheckpointDamaged(
                        f"checkpoint {self._folder} does not load: it holds {held} of {size} elements of {name}"
                    )

    def read(self, kind: str, name: str, *, first: int, count: int) -> Tensor:
        """A range of a parameter's elements of one kind, [count]; of zeros if the optimizer had none of it.

        Raises:
            CheckpointDamaged: some of them are in no file.
        """
        ranges = self._ranges.get((kind, name))
        if ranges is None:
            return torch.zeros(count)
        end, parts = first + count, []
        for start, length, file, key in sorted(ranges, key=lambda r: r[0]):
            low, high = max(first, start), min(end, start + length)
            if low < high:
                parts.append(file.get_slice(key)[low - start : high - start])
        found = torch.cat(parts) if parts else torch.zeros(0)
        if len(found) != count:
            raise CheckpointDamaged(
                f"checkpoint {self._folder} does not load: elements of {name} are missing"
            )
        return found

    def take_into(self, elements: Iterable[Elements], *, dtype: torch.dtype) -> None:
        """Copy what was saved into a rank's views.

        Args:
            elements: what the rank holds; its weights are loaded already.
            dtype: what weights are published in.
        """
        for part in elements:
            count = len(part.weight)
            for kind, values in part.moments.items():
                values.copy_(self.read(kind, part.name, first=part.first, count=count))
            if self.masters:
                master = self.read(MASTER, part.name, first=part.first, count=count).to(part.weight)
                same = master.to(dtype) == part.weight.to(dtype)
                part.weight.copy_(torch.where(same, master, part.weight))

    def __enter__(self) -> SavedState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
