"""The trainer backend on DeepSpeed: ZeRO divides optimizer state, gradients and weights between the ranks.

ZeRO (arXiv 1910.02054) divides the optimizer's state at stage 1, gradients too at stage 2, weights too at stage 3.
DeepSpeed averages gradients over ranks, scales losses and clips; here it gets sums instead of averages. Its loss scale
is the number of ranks during a backward, which undoes the average, and the step's divisor when the optimizer takes the
step, which divides before it clips. DeepSpeed counts no micro-batches: `finish_step` says when a step ends.

Used below DeepSpeed's public interface, here and nowhere else: the loss scale, accumulated gradients and flat
parameters of its optimizers (`override_loss_scale`, `averaged_gradients`, `fp32_partitioned_groups_flat`), since it has
no interface for sums that are divided once; the parts of parameters that a rank holds (`ds_tensor`, `_hp_mapping`), to
write checkpoints as ranges of elements; and its table of compiled operations.
`tests/engines/test_library_internals.py` names what an upgrade breaks.

Stage 3 replaces functions of torch in the whole process: backends of two kinds need two processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rljob_core.errors import SpecError
from rljob_runtime.model.causal import empty_model, load_model
from rljob_runtime.training.backends.base import BackendBase, Reference
from rljob_runtime.training.broadcast import gathered
from rljob_runtime.training.gang import join_alone
from rljob_runtime.training.optimizer import fill_state, moments_of
from rljob_runtime.training.optimizer_state import Elements
from rljob_runtime.training.options import DeepSpeedBackendOptions

#: Elements that are reduced at a time; DeepSpeed holds a buffer of this size.
_BUCKET = 1 << 28


class DeepSpeedBackend(BackendBase):
    """One rank of the trainer; see `BackendBase`. A rank alone becomes a process group of one.

    Raises:
        SpecError: the folder holds no causal language model, or DeepSpeed is not installed.
    """

    _options: DeepSpeedBackendOptions
    in_step = True

    def _make(self) -> None:
        if self._world_size == 1:
            join_alone(self._device.type)
        self._stage = self._options.zero_stage
        self._deepspeed = _deepspeed(self._device)
        model = self._prepare(empty_model(self._model_path, dtype=self._dtype))
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._bucket = min(_BUCKET, sum(p.numel() for p in parameters))
        rate, decay = self._algorithm.learning_rate, self._algorithm.weight_decay
        self._engine, *_ = self._deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True),
            config=self._engine_config(),
            dist_init_required=False,
        )
        self._engine.eval()
        self._zero = self._engine.optimizer
        self._optimizer = self._zero.optimizer
        for flat in self._flat_parameters():
            fill_state(self._optimizer, flat)
        self._adopt(self._engine)
        self._fill(self._named)
        if self._lora is not None:
            self._take(self._initial())
            self._pristine = True
        elif self._settings.kl > 0:
            self._frozen = self._frozen_model()

    def _engine_config(self) -> dict[str, Any]:
        zero: dict[str, Any] = {
            "stage": self._stage,
            "overlap_comm": False,
            "reduce_bucket_size": self._bucket,
            "allgather_bucket_size": _BUCKET,
        }
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,
            "gradient_clipping": self._algorithm.max_grad_norm,
            "zero_optimization": zero,
            "steps_per_print": None,
        }
        if self._dtype is torch.bfloat16:
            config["bf16"] = {"enabled": True, "check_grad_overflow": True}
            if self._stage > 1:  # stage 1 would take another optimizer, which cannot be given sums
                config["data_types"] = {"grad_accum_dtype": "fp32"}
        return config

    def _frozen_model(self) -> Any:
        offload = self._options.offload_reference
        if self._stage < 3:
            home = torch.device("cpu") if offload else self._device
            model = self._prepare_frozen(load_model(self._model_path, dtype=self._dtype, device=home))
            return Reference(model, device=self._device, offload=offload)
        config = self._engine_config()
        if offload:
            pinned = self._device.type == "cuda"
            config["zero_optimization"]["offload_param"] = {"device": "cpu", "pin_memory": pinned}
        model = self._prepare_frozen(empty_model(self._model_path, dtype=self._dtype))
        engine, *_ = self._deepspeed.initialize(model=model, config=config, dist_init_required=False)
        engine.eval()
        self._fill(self._weights(engine))
        return engine

    def _flat_parameters(self) -> Iterator[Tensor]:
        """What the optimizer updates: this rank's part of all parameters, end to end."""
        if self._stage < 3:
            for group in self._optimizer.param_groups:
                yield from group["params"]
        else:  # it takes them in turn, and has none between steps
            yield from self._zero.fp32_partitioned_groups_flat

    # ------------------------------------------------------------------------------------------ state

    def _weights(self, model: Any) -> dict[str, Tensor]:
        return dict(model.module.state_dict(keep_vars=True))

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(getattr(tensor, "ds_shape", tensor.shape))

    def _put(self, tensor: Any, value: Tensor) -> None:
        if tensor.shape == value.shape:  # at stage 3, while the whole is there
            tensor.data.copy_(value)
        flat = value.reshape(-1)
        if hasattr(tensor, "ds_tensor"):
            first, count = self._range(tensor)
            tensor.ds_tensor[:count].copy_(flat[first : first + count])
        if tensor.requires_grad:
            for part in self._parts("", tensor):
                part.weight.copy_(flat[part.first : part.first + len(part.weight)])

    def _whole(self, tensor: Any) -> Tensor:
        if not hasattr(tensor, "ds_tensor"):
            own: Tensor = tensor
            return own
        _, count = self._range(tensor)
        own = tensor.ds_tensor.detach()[:count]
        return gathered(own, part=tensor.ds_tensor.ds_numel, size=tensor.ds_numel).view(tensor.ds_shape)

    def _reference(self) -> AbstractContextManager[Any]:
        if isinstance(self._frozen, Reference):
            return self._frozen.ready()
        return nullcontext(self._frozen)

    def _elements(self) -> Iterator[Elements]:
        for name, parameter in self._trained.items():
            yield from self._parts(name, parameter)

    def _parts(self, name: str, parameter: Any) -> Iterator[Elements]:
        """The elements of a parameter that this rank's optimizer holds, if any."""
        if self._stage == 3:
            from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

            first, count = self._range(parameter)
            moments = {
                kind: safe_get_local_optimizer_state(parameter, kind)[:count]
                for kind in ("exp_avg", "exp_avg_sq")
            }
            yield Elements(name, first, safe_get_local_fp32_param(parameter)[:count], moments)
        elif (mapping := parameter._hp_mapping) is not None:
            (flat,) = self._optimizer.param_groups[mapping.param_group_index]["params"]
            place = mapping.hp_fragment_address
            moments = {
                kind: values.narrow(0, place.start, place.numel)
                for kind, values in moments_of(self._optimizer, flat).items()
            }
            weight = flat.detach().narrow(0, place.start, place.numel)
            yield Elements(name, mapping.lp_fragment_address.start, weight, moments)

    def _range(self, parameter: Any) -> tuple[int, int]:
        """First flat index and number of the elements that this rank has at stage 3: equal parts, the last shorter."""
        part = parameter.ds_tensor.ds_numel
        first = min(self._rank * part, parameter.ds_numel)
        return first, min(part, parameter.ds_numel - first)

    # ------------------------------------------------------------------------------------------ a step

    def _zero_gradients(self) -> None:
        zero = self._zero
        zero.zero_grad(set_to_none=True)
        if self._stage < 3:  # as it does itself after an overflow
            zero.micro_step_id = -1
            for held in (zero.averaged_gradients, zero.all_grad_tensors):
                held.update(dict.fromkeys(held))

    def _backward(self, loss: Tensor) -> None:
        self._zero.override_loss_scale(float(self._world_size))
        self._engine.backward(loss)

    def _reduce_gradients(self, scale: float) -> None:
        self._zero.override_loss_scale(1.0 / scale)

    def _update(self, learning_rate: float) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        norm = float(self._engine.get_global_grad_norm())
        if norm < float("inf"):
            self._pristine = False
        return norm


def _deepspeed(device: torch.device) -> Any:
    """The library, over the default process group."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read when it is imported; else it looks for devices, and warns
    try:
        import deepspeed
    except ImportError as error:
        raise SpecError(
            "spec.trainer.backend", "DeepSpeed is not installed: install rljob[deepspeed]"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    os.environ.setdefault("LOCAL_RANK", "0")  # it insists; a gang's pod says which
    # Its collectives over shared memory would be compiled here and now, by a compiler that a pod need not have.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(auto_mpi_discovery=False, dist_init_required=False)
    return deepspeed
