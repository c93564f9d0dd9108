"""The options of the engine `Emulated`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from rljob_core.emulation import DEVICES, DeviceName, ResponseLengths
from rljob_core.messages import EngineProfile
from rljob_runtime.engines.factory import EngineOptions

_NonNegativeSeconds = Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)]
_Factor = Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]


class LengthOptions(EngineOptions):
    """How long emulated responses are: log-normal, with a factor that siblings share.

    Lengths as StreamRL measured them have a median of 1,160 tokens and sigma 0.99, of which 0.855 is the prompt's, and
    are cut at 16k and 32k tokens: `{median: 1160, sigma: 0.99, promptSigma: 0.855, max: 16384}`, or `max: 32768`.
    """

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
    growth_per_version: Annotated[float, Field(ge=-1, strict=False, allow_inf_nan=False)] = 0.0
    """How lengths grow with training: the median is multiplied by (1 + growthPerVersion) ** version, with the version
    of the weights that a response begins with. A response that moves to another engine keeps its length."""
    seed: int = 0
    """Seed from which all lengths are drawn."""

    @property
    def distribution(self) -> ResponseLengths:
        """From which lengths are drawn."""
        return ResponseLengths(**self.model_dump())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.prompt_sigma > self.sigma:
            raise ValueError("promptSigma is a part of sigma: make it at most sigma")
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class EmulatedEngineOptions(EngineOptions):
    """Options of the engine `Emulated`; `timeScale` multiplies everything that is given in seconds."""

    slots: Annotated[int, Field(ge=1, le=65536)] = 32
    """Trajectories generated at once."""
    device: DeviceName | None = None
    """Device whose step times and KV cache are the defaults of `stepSeconds`, `stepSecondsPerSlot`,
    `stepSecondsPerContextToken` and `kvTokens`; they are a roofline from data sheets for an 8B model."""
    step_seconds: Annotated[float, Field(gt=0, strict=False)] = 0.01
    """Duration of a decode step."""
    step_seconds_per_slot: _NonNegativeSeconds = 0.0
    """What each running trajectory adds to the duration of a step."""
    step_seconds_per_context_token: _NonNegativeSeconds = 0.0
    """What each token in the contexts of the running trajectories adds to the duration of a step."""
    prefill_seconds_per_token: _NonNegativeSeconds = 0.0
    """What each token of a trajectory's context adds to the step in which the trajectory joins: prompt and inherited
    tokens, and all tokens again after a preemption."""
    kv_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens that the KV cache holds; null for any number. A waiting trajectory joins once its context fits into what
    is free. When the next step does not fit, the trajectory that joined last is preempted: its cache is freed, and
    it is the first to join again, for which its cache is computed again. A trajectory that is alone always runs."""
    prefix_caching: bool = True
    """Whether a prompt that several running trajectories share is held, and computed, once. Without `kvTokens` and
    `prefillSecondsPerToken` this makes no difference."""
    swap_seconds: _NonNegativeSeconds = 0.0
    """How long the engine stands still for new weights."""
    recompute_cache: bool | Literal["Auto"] = True
    """Whether `inflight: Update` computes the caches of running trajectories again, in the first step under the new
    weights; that takes `prefillSecondsPerToken` for each token in the cache. Auto: unless that would cost more than 2 %
    of the engine's time."""
    time_scale: _Factor = 1.0
    """What all durations are multiplied by: 0.05 runs a device twenty times as fast."""
    profile_error: _Factor = 1.0
    """What the reported profile's step times are multiplied by: other than 1 it is wrong, which is for tests."""
    lengths: LengthOptions = LengthOptions()
    """How long responses are."""

    @property
    def profile(self) -> EngineProfile:
        """Seconds of a decode step, as they pass."""
        return EngineProfile(
            seconds=self.time_scale * self.step_seconds,
            seconds_per_slot=self.time_scale * self.step_seconds_per_slot,
            seconds_per_context_token=self.time_scale * self.step_seconds_per_context_token,
            steps=0,
        )

    @model_validator(mode="before")
    @classmethod
    def _add_device(cls, values: Any) -> Any:
        """The values, with the device's where none are given."""
        if not isinstance(values, Mapping):
            return values
        device = next((found for name, found in DEVICES.items() if name == values.get("device")), None)
        if device is None:
            return values
        missing = {
            name: value
            for name, value in asdict(device).items()
            if name not in values and to_camel(name) not in values
        }
        return {**values, **missing}
