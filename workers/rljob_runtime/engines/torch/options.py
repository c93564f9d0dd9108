"""The options of the engine `Torch`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_runtime.engines.factory import EngineOptions


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
    recompute_cache: bool | Literal["Auto"] = True
    """Whether `inflight: Update` recomputes running trajectories' KV cache under the new weights; Auto: unless that
    would cost more than 2 % of the engine's time."""
