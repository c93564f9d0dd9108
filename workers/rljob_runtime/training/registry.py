"""The trainer backends by the names that `spec.trainer.backend` uses; looking one up loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import TrainerBackend
from rljob_core.spec import RLJobSpec
from rljob_runtime.model.folder_files import read_settings
from rljob_runtime.model.settings import LOADING
from rljob_runtime.plugins import Factory, Registry
from rljob_runtime.training.losses.registry import check_loss
from rljob_runtime.training.options import (
    DeepSpeedBackendOptions,
    EmulatedBackendOptions,
    FsdpBackendOptions,
    TorchBackendOptions,
    TrainingOptions,
)


@dataclass(frozen=True, slots=True)
class BackendFactory(Factory[TrainerBackend]):
    """Creates backends of one kind.

    Attributes:
        trains_model: it trains the Hugging Face model in the job's folder, so the folder must hold its weights.
    """

    trains_model: bool = False

    @property
    def trains_adapters(self) -> bool:
        """Whether it can train low-rank adapters instead of full weights."""
        return self.options is not None and issubclass(self.options, TrainingOptions)


def _torch(config: JobConfig, **given: Any) -> TrainerBackend:
    from rljob_runtime.training.backends.torch import TorchBackend

    return TorchBackend(config, **given)


def _fsdp(config: JobConfig, **given: Any) -> TrainerBackend:
    from rljob_runtime.training.backends.fsdp import FsdpBackend

    return FsdpBackend(config, **given)


def _deepspeed(config: JobConfig, **given: Any) -> TrainerBackend:
    from rljob_runtime.training.backends.deepspeed import DeepSpeedBackend

    return DeepSpeedBackend(config, **given)


def _emulated(
    config: JobConfig,  # noqa: ARG001
    *,
    options: EmulatedBackendOptions,
    model_path: Path,  # noqa: ARG001
    rank: int,  # noqa: ARG001
    world_size: int,
) -> TrainerBackend:
    from rljob_runtime.training.backends.emulated import EmulatedBackend

    return EmulatedBackend(options, world_size=world_size, sleep=sleep)


BACKENDS = Registry[BackendFactory](
    "trainer backend",
    "rljob.backends",
    {
        "Torch": BackendFactory(
            _torch,
            TorchBackendOptions,
            trains_model=True,
            preload=(*LOADING, "rljob_runtime.training.backends.torch"),
        ),
        "FSDP": BackendFactory(_fsdp, FsdpBackendOptions, trains_model=True),
        "DeepSpeed": BackendFactory(_deepspeed, DeepSpeedBackendOptions, trains_model=True),
        "Emulated": BackendFactory(
            _emulated, EmulatedBackendOptions, preload=("rljob_runtime.training.backends.emulated",)
        ),
    },
    BackendFactory.of,
)


def find_backend(name: str) -> BackendFactory:
    """The factory of the backend with that name; loads none of our backends.

    Raises:
        SpecError: no backend has that name, or it does not load.
    """
    return BACKENDS.find(name, field="spec.trainer.backend")


def check_backend(spec: RLJobSpec) -> Any:
    """The backend's options, as its own model of them (a dict, if it has none); loads none of our backends.

    Raises:
        SpecError: no backend has that name, it does not load, it has no such option, or it cannot do what the job asks.
    """
    name = spec.trainer.backend
    factory = find_backend(name)
    if spec.model.lora is not None and not factory.trains_adapters:
        raise SpecError("spec.model.lora", f"backend {name} trains full weights only: remove lora")
    if factory.trains_model and spec.data.group_size < 2:
        raise SpecError(
            "spec.data.groupSize",
            f"{spec.data.group_size} teaches nothing: advantages are relative to the other answers of a group, and "
            "those of a single one are 0; write 2 or more (8 is usual)",
        )
    _check_ranks(spec)
    return factory.check(spec.trainer.options, field="spec.trainer.options", whose=f"backend {name}")


def _check_ranks(spec: RLJobSpec) -> None:
    ranks = spec.trainer.num_nodes * spec.trainer.num_proc_per_node
    trajectories = spec.data.prompts_per_step * spec.data.group_size
    if ranks > trajectories:
        raise SpecError(
            "spec.trainer.numProcPerNode" if spec.trainer.num_nodes == 1 else "spec.trainer.numNodes",
            f"{ranks} ranks would share {trajectories} trajectories a step: lower numNodes or numProcPerNode, or raise "
            "spec.data.promptsPerStep",
        )


def check_adapter_rank(spec: RLJobSpec, model_path: Path) -> None:
    """Check that the model's layers are large enough for the adapters' rank; reads its config.json only.

    Raises:
        SpecError: the smallest layer is smaller than the rank.
    """
    if spec.model.lora is None:
        return
    settings = read_settings(model_path / "config.json")
    smallest = smallest_projection(settings.get("text_config", settings))
    if smallest is not None and spec.model.lora.rank > smallest:
        raise SpecError(
            "spec.model.lora.rank",
            f"{spec.model.lora.rank} is above {smallest}, the smallest size of a layer of {model_path}: an adapter of "
            f"full rank has {smallest}",
        )


def smallest_projection(settings: Mapping[str, Any]) -> int | None:
    """The smallest input or output of the projections in a decoder layer; None if config.json does not say.

    Args:
        settings: of the text model.
    """
    hidden, heads = settings.get("hidden_size"), settings.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int):
        return None
    head = settings.get("head_dim") or hidden // heads
    keys = settings.get("num_key_value_heads") or heads
    sizes = [hidden, head * heads, head * keys, settings.get("intermediate_size")]
    return min(size for size in sizes if isinstance(size, int))


def device_of(options: Any) -> str:
    """The device that a backend with these options computes on: `cpu` or `cuda`."""
    return options.device if isinstance(options, TrainingOptions) else "cpu"


def create_backend(config: JobConfig, *, rank: int, world_size: int, model_path: Path) -> TrainerBackend:
    """One rank's backend, with the initial model's weights.

    With more than one rank, `torch.distributed` must be initialised.

    Args:
        config: the job.
        rank: this rank, from 0.
        world_size: ranks in all.
        model_path: folder of the initial model (the backend `Emulated` reads none).

    Raises:
        SpecError: as `check_backend` and `check_loss`, or the folder holds no causal language model, or not one for
            these adapters.
    """
    options = check_backend(config.spec)
    check_loss(config.spec)
    factory = find_backend(config.spec.trainer.backend)
    if factory.trains_model:
        check_adapter_rank(config.spec, model_path)
    return factory.create(config, options=options, model_path=model_path, rank=rank, world_size=world_size)
