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


class TorchEngineOptions(EngineOptions):
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


class VllmEngineOptions(EngineOptions):
    """Options of the engine `vLLM`."""

    slots: Annotated[int, Field(ge=1, le=65536)] = 64
    """Trajectories generated at once."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of a worker on a CPU; null takes the cores that the process may use, shared out among the workers."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What weights and cache are held and computed in; auto is what the model's folder says."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Prompt and response together at most, in tokens; null is the model's context."""
    max_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one step at most, prompts included; null leaves it to vLLM."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share each layer."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.9
    """Part of each GPU's memory to use; on a CPU, `kvCacheGiB` counts."""
    kv_cache_gib: Annotated[float | None, Field(gt=0, strict=False, alias="kvCacheGiB")] = None
    """KV cache of each worker; null is what `gpuMemoryUtilization` leaves on a GPU, and 1 GiB on a CPU."""
    prefix_caching: bool = True
    """Whether what prompts have in common is computed once; forgotten whenever weights change."""
    recompute_cache: bool = True
    """Whether `inflight: Update` recomputes running trajectories' KV cache under the new weights."""
    enforce_eager: bool | None = None
    """Whether to do without compilation and CUDA graphs: a quicker start, slower steps; null: on a CPU only."""
    quantization: str | None = None
    """How vLLM quantizes the weights when it loads them, for instance fp8; null does not."""
    start_seconds: Annotated[float, Field(gt=0, strict=False)] = 1800.0
    """How long loading may take."""


class HttpEngineOptions(EngineOptions):
    """Options of the engine `HTTP`."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """Of an OpenAI-compatible server, up to and without `/v1`."""
    model: str = ""
    """What the server calls the model; empty: the only one that it serves."""
    api_key_variable: str = ""
    """Environment variable with the server's key, set from a Secret in the pool's template; empty: it needs none."""
    slots: Annotated[int, Field(ge=1, le=65536)] = 64
    """Trajectories requested at once."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Prompt and response together at most, in tokens; null is the model's context."""
    timeout_seconds: Annotated[float, Field(gt=0, strict=False)] = 300.0
    """How long the server may stay silent, and how long a request is tried again while it cannot be reached."""
    weights: Literal["Reload", "Publish"] = "Reload"
    """Reload: this engine has the server load each version. Publish: something else does, and the server says which
    version it has."""
    seeds: bool = True
    """Whether requests carry seeds. vLLM 0.32 without our worker extension dies of them on a CPU, once it computes a
    prompt in parts."""
    reload_path: Annotated[str, Field(pattern=r"^(/.*)?$")] = ""
    """Where `Reload` posts `{"model_path": …, "weight_version": …}`, as `/update_weights_from_disk`; empty: the server
    is vLLM's, in its development mode."""
    version_path: Annotated[str, Field(pattern=r"^/")] = "/weight_info"
    """Path at which the server reports `weight_version`: what it got with the last weights."""
    staging: str | None = None
    """Folder that the server reads weights from, under the same path; null: memory of a machine that both share."""


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


class EmulatedEngineOptions(EngineOptions):
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
