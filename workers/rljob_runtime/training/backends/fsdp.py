"""The trainer backend `FSDP`: PyTorch's FSDP2 divides weights, gradients and optimizer state between the ranks.

The ranks gather each decoder layer's weights when it computes, and drop them afterwards (arXiv 2304.11277;
`fully_shard`). Every backward adds up gradients between ranks, so that no rank ever has whole gradients. With bfloat16,
the divided weights are float32; gathered layers are bfloat16 and compute in it, and their gradients are added up in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rljob_runtime.model.causal import decoder_layers, empty_model
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.broadcast import gathered
from rljob_runtime.training.gang import join_alone
from rljob_runtime.training.optimizer import moments_of
from rljob_runtime.training.optimizer_state import Elements


class FsdpBackend(TorchBackend):
    """One rank of the trainer; see `BackendBase`. A rank alone becomes a process group of one."""

    in_step = True

    def _build(self) -> None:
        if self._world_size == 1:
            join_alone(self._device.type)
        self._mesh = init_device_mesh(self._device.type, (self._world_size,))
        trained = self._wide if self._lora is None else self._dtype
        model = self._prepare(empty_model(self._model_path, dtype=trained))
        for parameter in model.parameters():
            if parameter.requires_grad:  # adapters; all else has its dtype
                parameter.data = parameter.data.to(self._wide)
        self._adopt(self._divided(model))
        self._fill(self._named)
        if self._lora is not None:
            self._take(self._initial())
        self._pristine = True
        if self._settings.kl > 0 and self._lora is None:
            self._frozen = self._prepare_frozen(empty_model(self._model_path, dtype=self._dtype))
            self._divided(self._frozen, offload=self._options.offload_reference)
            self._fill(self._weights(self._frozen))
        self._optimized = dict(self._trained)

    def _divided(self, model: Any, *, offload: bool = False) -> Any:
        policy = CPUOffloadPolicy() if offload and self._device.type == "cuda" else OffloadPolicy()
        precision = MixedPrecisionPolicy(param_dtype=self._dtype, reduce_dtype=self._wide)
        modules: list[nn.Module] = [layer for _, layer in decoder_layers(model)]
        for module in [*modules, model]:
            sharded = fully_shard(
                module,
                mesh=self._mesh,
                reshard_after_forward=True,
                mp_policy=precision,
                offload_policy=policy,
            )
            sharded.set_gradient_divide_factor(1.0)  # sums, not means
            sharded.set_force_sum_reduction_for_comms(True)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self._device)
        return model

    # ------------------------------------------------------------------------------------------ state

    def _of_folder(self) -> Iterator[tuple[str, Any]]:
        return super(TorchBackend, self)._of_folder()

    def _put(self, tensor: Tensor, value: Tensor) -> None:
        if not isinstance(tensor, DTensor):
            tensor.copy_(value)
            return
        own = tensor.to_local()
        first = self._first_row(tensor)
        own.copy_(value[first : first + own.shape[0]])

    def _whole(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        own = tensor.detach().to_local().to(self._empty(tensor).dtype)
        part = self._rows(tensor) * tensor.shape[1:].numel()
        return gathered(own.reshape(-1), part=part, size=tensor.numel()).view(tensor.shape)

    def _reference(self) -> AbstractContextManager[Any]:
        return nullcontext(self._frozen)

    def _elements(self) -> Iterator[Elements]:
        for name, parameter in self._optimized.items():
            columns = parameter.shape[1:].numel()
            moments = moments_of(self._optimizer, parameter)
            flat = {kind: values.to_local().view(-1) for kind, values in moments.items()}
            first = self._first_row(parameter) * columns
            yield Elements(name, first, parameter.detach().to_local().view(-1), flat)

    def _restored(self) -> Iterator[Elements]:
        return self._elements()

    def _writers(self) -> int:
        return self._world_size

    def _first_row(self, tensor: DTensor) -> int:
        """The row at which this rank's part begins: rows are divided as `torch.chunk` does it."""
        height: int = tensor.shape[0]
        return min(self._rank * self._rows(tensor), height)

    def _rows(self, tensor: DTensor) -> int:
        """How many rows a rank has."""
        height: int = tensor.shape[0]
        return -(-height // self._world_size)

    # ------------------------------------------------------------------------------------------ a step

    def _add_up(self, gradients: list[Tensor]) -> None:
        """Each backward did."""

    def _clip(self) -> float:
        parameters = list(self._optimized.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._algorithm.max_grad_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
