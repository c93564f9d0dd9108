"""The options of the engine `Emulated`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rljob_runtime.engines.options import EngineOptions

_Seconds = Annotated[float, Field(ge=0, strict=False)]


class LengthOptions(EngineOptions):
    """How long emulated responses are: log-normal, with a factor that siblings share."""

    median: Annotated[float, Field(gt=0, strict=False)] = 220.0
    """Median length in tokens."""
    sigma: Annotated[float, Field(ge=0, strict=False)] = 0.8
    """Standard deviation of the logarithm of the length over all samples."""
    prompt_sigma: Annotated[float, Field(ge=0, strict=False)] = 0.5
    """The part of `sigma` that is the prompt's: its siblings differ by sqrt(sigma² − promptSigma²)."""
    min: Annotated[int, Field(ge=1)] = 64
    """Least length in tokens; a shorter draw counts as this."""
    max: Annotated[int, Field(ge=1)] = 1024
    """Greatest length in tokens; a longer draw counts as this."""
    seed: int = 0
    """Seed from which all lengths are drawn."""

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
    step_seconds_per_slot: _Seconds = 0.0
    """What each running trajectory adds to the duration of a step."""
    step_seconds_per_context_token: _Seconds = 0.0
    """What each token in the contexts of the running trajectories adds to the duration of a step."""
    lengths: LengthOptions = LengthOptions()
    """How long responses are."""
