"""Options of the engines, as `spec.rollout.engine.options` holds them: checked without loading an engine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel


class EngineOptions(BaseModel):
    """Strict, camelCase outside."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", strict=True
    )


Seconds = Annotated[float, Field(ge=0, strict=False)]


class TorchOptions(EngineOptions):
    """Options of the engine `Torch`."""

    slots: Annotated[int, Field(ge=1, le=4096)] = 64
    """Trajectories generated at once."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of a CPU operation; null leaves it to torch (all cores)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What weights and cache are held and computed in."""
    device: Literal["cpu", "cuda"] | None = None
    """Where to compute; null takes a GPU if there is one."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Prompt and response together at most, in tokens; null is the model's context."""
    recompute_cache: bool = True
    """Whether `inflight: Update` recomputes running trajectories' KV cache under the new weights."""


class LengthOptions(EngineOptions):
    """How long emulated responses are: log-normal, with a factor that siblings share."""

    distribution: Literal["lognormal"] = "lognormal"
    """The shape."""
    median: Annotated[float, Field(gt=0, strict=False)] = 220.0
    """Median length in tokens."""
    sigma: Annotated[float, Field(ge=0, strict=False)] = 0.8
    """Standard deviation of the logarithm of the length over all samples."""
    prompt_sigma: Annotated[float, Field(ge=0, strict=False)] = 0.5
    """The part of `sigma` that is the prompt's: its siblings differ by sqrt(sigma² − promptSigma²)."""
    min: Annotated[int, Field(ge=1)] = 64
    """Shorter ones are this long."""
    max: Annotated[int, Field(ge=1)] = 1024
    """Longer ones are this long."""
    seed: int = 0
    """Of all lengths."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.prompt_sigma > self.sigma:
            raise ValueError("promptSigma is a part of sigma: make it at most sigma")
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class EmulatedOptions(EngineOptions):
    """Options of the engine `Emulated`."""

    slots: Annotated[int, Field(ge=1, le=65536)] = 32
    """Trajectories generated at once."""
    step_seconds: Annotated[float, Field(gt=0, strict=False)] = 0.01
    """Duration of a decode step."""
    step_seconds_per_slot: Seconds = 0.0
    """What each running trajectory adds to it."""
    step_seconds_per_context_token: Seconds = 0.0
    """What each token of their contexts adds to it."""
    lengths: LengthOptions = LengthOptions()
    """How long responses are."""
