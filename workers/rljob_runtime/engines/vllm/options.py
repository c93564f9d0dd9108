"""The options of the engine `vLLM`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_runtime.engines.factory import EngineOptions


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
    recompute_cache: bool | Literal["Auto"] = True
    """Whether `inflight: Update` recomputes running trajectories' KV cache under the new weights; Auto: unless that
    would cost more than 2 % of the engine's time."""
    enforce_eager: bool | None = None
    """Whether to do without compilation and CUDA graphs: a quicker start, slower steps; null: on a CPU only."""
    quantization: str | None = None
    """How vLLM quantizes the weights when it loads them, for instance fp8; null does not."""
    start_seconds: Annotated[float, Field(gt=0, strict=False)] = 1800.0
    """How long loading may take."""
