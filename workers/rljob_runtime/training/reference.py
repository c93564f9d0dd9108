"""The frozen initial model that the KL divergence is measured against; it can stay in host memory between its uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Reference:
    """A whole model on every rank.

    Args:
        model: on its device; on the CPU if it is to be offloaded.
        device: where it computes.
        offload: whether it leaves the device between uses.
    """

    def __init__(self, model: Any, *, device: torch.device, offload: bool) -> None:
        self._model = model
        self._device, self._offload = device, offload
        if offload and device.type == "cuda":
            for tensor in self._tensors():
                tensor.data = tensor.data.pin_memory()

    @contextmanager
    def ready(self) -> Iterator[Any]:
        """The model on its device."""
        if not self._offload:
            yield self._model
            return
        home = [tensor.data for tensor in self._tensors()]
        for tensor in self._tensors():
            tensor.data = tensor.data.to(self._device, non_blocking=True)
        try:
            yield self._model
        finally:  # weights do not change, so nothing is copied back to host memory
            for tensor, data in zip(self._tensors(), home, strict=True):
                tensor.data = data

    def _tensors(self) -> list[Any]:
        return [*self._model.parameters(), *self._model.buffers()]
