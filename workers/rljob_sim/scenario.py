"""What is simulated: engines by kind, the trainer, and how long responses are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from rljob_core.config import JobConfig
from rljob_core.emulation import DEVICES, DeviceName, ResponseLengths
from rljob_core.messages import EngineProfile
from rljob_sim.measured_lengths import AnswerLengths

STREAMRL_LENGTHS = ResponseLengths(median=1160, sigma=0.99, prompt_sigma=0.855, min=16, max=16_384)
"""Lengths as StreamRL measured them: median 1,160 tokens, 90th percentile 4,115."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine.

    Attributes:
        name: of its pool.
        count: how many there are.
        slots: sequences that each generates at once.
        profile: seconds of a decode step.
        kv_tokens: capacity of the KV cache in tokens; None for any number.
        prefill_seconds: what each token of a context that is computed adds to a step.
        swap_seconds: how long it stands still for new weights.
        recompute_cache: whether these have the caches of what runs computed again; None where the engine decides.
        price: of one for an hour, in any currency.
        site: where they are; empty for the hub. The link is that of the job's configuration.
    """

    name: str
    count: int
    slots: int
    profile: EngineProfile
    kv_tokens: int | None = None
    prefill_seconds: float = 0.0
    swap_seconds: float = 0.0
    recompute_cache: bool | None = True
    price: float = 0.0
    site: str = ""

    @classmethod
    def of(cls, device: DeviceName, count: int, slots: int) -> Self:
        """Engines on a device of the library."""
        known = DEVICES[device]
        return cls(
            device.lower(),
            count,
            slots,
            EngineProfile(
                seconds=known.step_seconds,
                seconds_per_slot=known.step_seconds_per_slot,
                seconds_per_context_token=known.step_seconds_per_context_token,
                steps=1,
            ),
            known.kv_tokens,
        )


@dataclass(frozen=True, slots=True)
class TrainerProfile:
    """How long the trainer takes.

    Attributes:
        seconds_per_token: of training.
        seconds_per_trajectory: of training, besides.
        step_seconds: of each step besides, with the optimizer's.
        publish_seconds: from a step's end until engines can load its weights.
        price: of the gang for an hour.
        version_bytes: what each version of the weights takes on the link to a site.
    """

    seconds_per_token: float
    seconds_per_trajectory: float = 0.0
    step_seconds: float = 0.0
    publish_seconds: float = 0.0
    price: float = 0.0
    version_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job and what it runs on.

    Attributes:
        config: of the job.
        engines: kinds of engines.
        trainer: of the job.
        lengths: of responses.
        prompt_tokens: of each prompt.
        reward_seconds: from a response's end until its score is read.
        prefetch: see `Planner`.
        length_correlation: rank correlation of what is predicted of the lengths of answers, with these.
        decide_seconds: for which the coordinator lets observations gather before it decides by all of them. A real one
            does so while it decides, and stores what it has decided; with few engines, that is next to nothing.
    """

    config: JobConfig
    engines: tuple[EngineKind, ...]
    trainer: TrainerProfile
    lengths: AnswerLengths = field(default=STREAMRL_LENGTHS)
    prompt_tokens: int = 256
    reward_seconds: float = 0.0
    prefetch: float = 0.25
    length_correlation: float = 0.0
    decide_seconds: float = 0.0
