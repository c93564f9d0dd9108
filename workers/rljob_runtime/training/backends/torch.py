"""The trainer backend `Torch`: every rank has the whole model, which AdamW updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from rljob_runtime.model.causal import load_model
from rljob_runtime.training.backends.base import BackendBase, Reference
from rljob_runtime.training.optimizer import adamw, moments_of
from rljob_runtime.training.optimizer_state import Elements


class MasterWeights:
    """Float32 copies of a bfloat16 model's parameters, which the optimizer updates; gradients add up in them.

    In bfloat16 an update smaller than 1/256 of a weight would be lost, and so would a small addition to a large
    gradient.

    Args:
        parameters: in training, by name.

    Attributes:
        twins: float32 parameters by name.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters
        self.twins = {name: Parameter(p.detach().float()) for name, p in parameters.items()}
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, self.twins[name]))

    def take(self) -> None:
        """Start from the model's weights."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self.twins[name].copy_(parameter)

    def publish(self) -> None:
        """Round the twins into the model."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self.twins[name])


def _move_gradient(twin: Parameter, parameter: Tensor) -> None:
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return
    if twin.grad is None:
        twin.grad = gradient.float()
    else:
        twin.grad += gradient


class TorchBackend(BackendBase):
    """One rank of the trainer; see `BackendBase`."""

    _frozen: Any = None
    _masters: MasterWeights | None = None

    def _make(self) -> None:
        self._build()
        self._optimizer = adamw(list(self._optimized.values()), self._algorithm)

    def _build(self) -> None:
        """Make the models; after this `_optimized` holds what the optimizer updates, by name."""
        self._adopt(self._prepare(self._load(self._device)).to(self._device))
        if self._lora is not None:
            self._take(self._initial())
            self._pristine = True
        elif self._settings.kl > 0:
            offload = self._options.offload_reference
            home = torch.device("cpu") if offload else self._device
            frozen = self._prepare_frozen(self._load(home))
            self._frozen = Reference(frozen, device=self._device, offload=offload)
        self._optimized: dict[str, Any] = dict(self._trained)
        if self._dtype is torch.bfloat16:
            self._masters = MasterWeights(self._optimized)
            self._optimized = dict(self._masters.twins)

    def _load(self, device: torch.device) -> Any:
        return load_model(self._model_path, dtype=self._dtype, device=device)

    # ------------------------------------------------------------------------------------------ state

    def _put(self, tensor: Tensor, value: Tensor) -> None:
        tensor.copy_(value)

    def _take(self, tensors: Iterable[tuple[str, Any]]) -> None:
        super()._take(tensors)
        if self._masters is not None:
            self._masters.take()

    def _whole(self, tensor: Tensor) -> Tensor:
        return tensor

    def _reference(self) -> AbstractContextManager[Any]:
        ready: AbstractContextManager[Any] = self._frozen.ready()
        return ready

    def _of_folder(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self._weights(self._load(torch.device("cpu"))).items():
            yield name, tensor.detach()

    def _elements(self) -> Iterator[Elements]:
        """All ranks hold the same: rank 0 saves it."""
        return self._restored() if self._rank == 0 else iter(())

    def _restored(self) -> Iterator[Elements]:
        for name, parameter in self._optimized.items():
            moments = moments_of(self._optimizer, parameter)
            flat = {kind: values.view(-1) for kind, values in moments.items()}
            yield Elements(name, 0, parameter.detach().view(-1), flat)

    def _writers(self) -> int:
        return 1

    # ------------------------------------------------------------------------------------------ a step

    def gradients(self) -> dict[str, Tensor]:
        """The step's gradient by parameter, after `normalise`; clipped in place by `finish_step`."""
        return {name: p.grad for name, p in self._optimized.items() if p.grad is not None}

    def _zero_gradients(self) -> None:
        for parameter in self._optimized.values():
            parameter.grad = None

    def _reduce_gradients(self, scale: float) -> None:
        for parameter in self._optimized.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._add_up([p.grad for p in self._optimized.values()])
        for parameter in self._optimized.values():
            parameter.grad.mul_(scale)

    def _add_up(self, gradients: list[Tensor]) -> None:
        """Add up those of all ranks."""
        if self._world_size > 1:
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                work.wait()

    def _update(self, learning_rate: float) -> float:
        norm = self._clip()
        if norm < float("inf"):
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
            self._pristine = False
            if self._masters is not None:
                self._masters.publish()
        return norm

    def _clip(self) -> float:
        parameters = list(self._optimized.values())
        return float(torch.nn.utils.clip_grad_norm_(parameters, self._algorithm.max_grad_norm))
