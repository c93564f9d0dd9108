"""Options of the trainer backends, as `spec.trainer.options` holds them: checked without loading torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_runtime.plugins import StrictOptions


class BackendOptions(StrictOptions):
    """Base of backend options: strict, with camelCase names in manifests."""


class TrainingOptions(BackendOptions):
    """Options of every backend that trains a Hugging Face model with PyTorch."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of a CPU operation; null leaves it to torch (all cores)."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """The dtype of computation. With bfloat16, the optimizer keeps the weights in float32 as well."""
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
    """The dtype of computation. With bfloat16, the optimizer keeps the weights in float32 as well."""
    zero_stage: Literal[1, 2, 3] = 2
    """What is divided between the ranks: the optimizer's state (1), gradients too (2), weights too (3)."""


Seconds = Annotated[float, Field(ge=0, strict=False)]


class EmulatedBackendOptions(BackendOptions):
    """Options of the backend `Emulated`: how long training takes, shared evenly between ranks."""

    step_seconds: Seconds = 0.0
    """Seconds of each step's end."""
    seconds_per_trajectory: Seconds = 0.0
    """Seconds of each trajectory in a micro-batch."""
    seconds_per_token: Seconds = 0.0
    """Seconds of each token in a micro-batch, prompts included."""
