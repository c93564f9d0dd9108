"""The trainer backends by name, and their options; checking them loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import TrainerBackend
from rljob_core.spec import RLJobSpec
from rljob_runtime.model.settings import read_settings
from rljob_runtime.plugins import Factory, Registry


class BackendOptions(BaseModel):
    """Strict, camelCase outside."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", strict=True
    )


class TrainingOptions(BackendOptions):
    """Options that all backends that train have."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of a CPU operation; null leaves it to torch (all cores)."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """What is computed in. With bfloat16, the optimizer keeps the weights in float32 as well."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute; with cuda, each rank of a pod takes the GPU of its number."""
    forward_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one forward and backward at most, padding included; it bounds memory. Null: microBatchTokens."""
    packing: Literal["SharedPrompt", "Padded"] | None = None
    """Whether a group's prompt is computed once for all its responses, or each trajectory by itself and padded to the
    longest. Null shares prompts where the model's architecture allows it."""
    activation_checkpointing: bool = False
    """Keep each decoder layer's input only, and compute the layer again in the backward."""
    offload_reference: bool = False
    """Keep the reference model in host memory between its uses."""


class TorchBackendOptions(TrainingOptions):
    """Options of the backend `Torch`."""


class FsdpBackendOptions(TrainingOptions):
    """Options of the backend `FSDP`."""


class DeepSpeedBackendOptions(TrainingOptions):
    """Options of the backend `DeepSpeed`."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in. With bfloat16, the optimizer keeps the weights in float32 as well."""
    zero_stage: Literal[1, 2, 3] = 2
    """What is divided between the ranks: the optimizer's state (1), gradients too (2), weights too (3)."""


Seconds = Annotated[float, Field(ge=0, strict=False)]


class EmulatedBackendOptions(BackendOptions):
    """Options of the backend `Emulated`: what training takes, shared evenly between ranks."""

    step_seconds: Seconds = 0.0
    """Each step's end."""
    seconds_per_trajectory: Seconds = 0.0
    """Each trajectory fed."""
    seconds_per_token: Seconds = 0.0
    """Each token fed, prompts included."""


def _torch(config: JobConfig, **given: Any) -> TrainerBackend:
    from rljob_runtime.training.backends.torch import TorchBackend

    return _trains(TorchBackend, config, **given)


def _fsdp(config: JobConfig, **given: Any) -> TrainerBackend:
    from rljob_runtime.training.backends.fsdp import FsdpBackend

    return _trains(FsdpBackend, config, **given)


def _deepspeed(config: JobConfig, **given: Any) -> TrainerBackend:
    from rljob_runtime.training.backends.deepspeed import DeepSpeedBackend

    return _trains(DeepSpeedBackend, config, **given)


def _trains(
    kind: Callable[..., TrainerBackend], config: JobConfig, *, model_path: Path, **given: Any
) -> TrainerBackend:
    """One that trains, for whose model the adapters must be right."""
    check_adapters(config.spec, model_path)
    return kind(config, model_path=model_path, **given)


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


BACKENDS = Registry[Factory[TrainerBackend]](
    "trainer backend",
    "rljob.backends",
    {
        "Torch": Factory(_torch, TorchBackendOptions),
        "FSDP": Factory(_fsdp, FsdpBackendOptions),
        "DeepSpeed": Factory(_deepspeed, DeepSpeedBackendOptions),
        "Emulated": Factory(_emulated, EmulatedBackendOptions),
    },
    Factory.of,
)


def check_backend(spec: RLJobSpec) -> Any:
    """The backend's options, as its own model of them (a dict, if it has none); loads none of our backends.

    Raises:
        SpecError: no backend has that name, it does not load, it has no such option, or it cannot do what the job asks.
    """
    name = spec.trainer.backend
    factory = BACKENDS.find(name, field="spec.trainer.backend")
    if spec.model.lora is not None and not (factory.options and issubclass(factory.options, TrainingOptions)):
        raise SpecError("spec.model.lora", f"backend {name} trains full weights only: remove lora")
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


def check_adapters(spec: RLJobSpec, model_path: Path) -> None:
    """Whether the model's layers are large enough for the adapters' rank; reads its config.json only.

    Raises:
        SpecError: they are not.
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
    """Where a backend computes."""
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
        SpecError: as `check_backend`, or the folder holds no causal language model, or not one for these adapters.
    """
    options = check_backend(config.spec)
    factory = BACKENDS.find(config.spec.trainer.backend, field="spec.trainer.backend")
    return factory.create(config, options=options, model_path=model_path, rank=rank, world_size=world_size)
