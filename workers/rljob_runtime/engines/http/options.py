"""The options of the engine `HTTP`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_runtime.engines.factory import EngineOptions


class HttpEngineOptions(EngineOptions):
    """Options of the engine `HTTP`."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """URL of an OpenAI-compatible server, without the `/v1` at its end."""
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
