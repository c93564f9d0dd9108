"""Reads the weights of a job that trains LoRA adapters as engines need them: the base model's with adapters added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_core.ports import WeightManifest
from rljob_runtime.model.tensor_files import read_model
from rljob_runtime.weights.store import StoredWeights
from rljob_runtime.weights.transport import Transport


class MergedWeights(StoredWeights):
    """A weight store whose `read` adds a version's adapters to the base model's weights. It is never written to.

    Args:
        transport: where the adapters' bytes are kept.
        base: folder of the base model.
        alpha: spec.model.lora.alpha.
        anchor_every: see `StoredWeights`.
    """

    def __init__(
        self, transport: Transport, *, base: Path, alpha: float, anchor_every: int | None = None
    ) -> None:
        super().__init__(transport, anchor_every=anchor_every)
        self._base = base
        self._alpha = alpha

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Yield the base model's tensors with a version's adapters added; all adapters are verified before the first.

        Raises:
            WeightsRejected: see `StoredWeights.read`, or the adapters belong to another model.
        """
        from rljob_runtime.model.lora_weights import merged  # the coordinator must not load torch

        adapters = dict(super().read(manifest))
        yield from merged(read_model(self._base), adapters, alpha=self._alpha)
