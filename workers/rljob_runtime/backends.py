"""The trainer backends by name, and their options; checking them loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep as _sleep
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import TrainerBackend
from rljob_core.spec import RLJobSpec


class BackendOptions(BaseModel):
    """Strict, camelCase outside."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", strict=True
    )


class TorchOptions(BackendOptions):
    """Options of the backend `Torch`."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of a CPU operation; null leaves it to torch (all cores)."""
    dtype: Literal["float32", "float64"] = "float32"
    """What weights, gradients and optimizer state are held and computed in."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute."""
    forward_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one forward and backward at most, padding included; it bounds memory. Null: microBatchTokens."""


Seconds = Annotated[float, Field(ge=0, strict=False)]


class EmulatedOptions(BackendOptions):
    """Options of the backend `Emulated`: what training takes, shared evenly between ranks."""

    step_seconds: Seconds = 0.0
    """Each step's end."""
    seconds_per_trajectory: Seconds = 0.0
    """Each trajectory fed."""
    seconds_per_token: Seconds = 0.0
    """Each token fed, prompts included."""


_OPTIONS: Mapping[str, type[TorchOptions] | type[EmulatedOptions]] = {
    "Torch": TorchOptions,
    "Emulated": EmulatedOptions,
}


def check_backend(spec: RLJobSpec) -> TorchOptions | EmulatedOptions:
    """The backend's options.

    Raises:
        SpecError: no backend has that name, it has no such option, or it cannot do what the job asks.
    """
    name = spec.trainer.backend
    if name not in _OPTIONS:
        raise SpecError("spec.trainer.backend", f"{name!r} is unknown: write one of {', '.join(_OPTIONS)}")
    if spec.model.lora is not None:
        raise SpecError("spec.model.lora", f"backend {name} trains full weights only: remove lora")
    try:
        return _OPTIONS[name].model_validate(spec.trainer.options)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(["spec.trainer.options", *map(str, first["loc"])])
        known = ", ".join(to_camel(key) for key in _OPTIONS[name].model_fields)
        hint = (
            f"backend {name} has the options {known}" if first["type"] == "extra_forbidden" else first["msg"]
        )
        raise SpecError(path, hint) from error


def create_backend(
    config: JobConfig,
    *,
    rank: int,
    world_size: int,
    model_path: Path,
    sleep: Callable[[float], None] = _sleep,
) -> TrainerBackend:
    """One rank's backend, with the initial model's weights.

    With more than one rank, `torch.distributed` must be initialised before the first step ends.

    Args:
        config: the job.
        rank: this rank, from 0.
        world_size: ranks in all.
        model_path: folder of the initial model (the backend `Emulated` reads none).
        sleep: how the backend `Emulated` spends its seconds.

    Raises:
        SpecError: as `check_backend`, or the folder holds no causal language model.
    """
    options = check_backend(config.spec)
    if isinstance(options, EmulatedOptions):
        from rljob_runtime.backend_emulated import EmulatedBackend

        return EmulatedBackend(options, world_size=world_size, sleep=sleep)
    from rljob_runtime.backend_torch import TorchBackend

    return TorchBackend(config, options=options, model_path=model_path, rank=rank, world_size=world_size)
