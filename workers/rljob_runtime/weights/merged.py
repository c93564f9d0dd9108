"""Weights of a job that trains adapters, as engines take them: whole, with the adapters added to the base model's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.ports import WeightManifest
from rljob_runtime.model.settings import weight_files
from rljob_runtime.weights.store import StoredWeights
from rljob_runtime.weights.transport import Transport


class MergedWeights(StoredWeights):
    """A weight store that is read from only.

    Args:
        transport: where the adapters' bytes are kept.
        base: folder of the base model.
        alpha: spec.model.lora.alpha.
        anchor_every: as of `StoredWeights`.
    """

    def __init__(
        self, transport: Transport, *, base: Path, alpha: float, anchor_every: int | None = None
    ) -> None:
        super().__init__(transport, anchor_every=anchor_every)
        self._base = base
        self._alpha = alpha

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Tensors of the base model with a version's adapters, which are verified before the first is given out.

        Raises:
            WeightsRejected: see `StoredWeights.read`, or the adapters are of another model.
        """
        from rljob_runtime.model.lora_weights import merged  # a coordinator loads no torch

        adapters = dict(super().read(manifest))
        yield from merged(base_tensors(self._base), adapters, alpha=self._alpha)


def base_tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """A model's weights from its files, one at a time.

    Raises:
        SpecError: there are none, or not all that there should be.
    """
    from safetensors import safe_open

    paths = weight_files(folder)
    if not paths:
        raise SpecError("spec.model.uri", f"{folder} holds no safetensors files: save the model with them")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  a method
                yield name, file.get_tensor(name)
