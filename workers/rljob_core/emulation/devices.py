"""Step times and cache sizes of named devices.

Their source is a roofline from the devices' data sheets, for a model of 8 billion parameters on one device: they are
not measured. A decode step reads all weights once (`step_seconds`), computes one token of each sequence
(`step_seconds_per_slot`), and reads the KV cache of all sequences (`step_seconds_per_context_token`). `kv_tokens` is
what fits beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DeviceName = Literal["H100", "H20", "L40S"]


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """What a device is by default, under the names of the options that override it.

    Attributes:
        step_seconds: of a decode step without sequences.
        step_seconds_per_slot: what each running sequence adds to a step.
        step_seconds_per_context_token: what each token in the contexts of the running sequences adds to a step.
        kv_tokens: capacity of the KV cache in tokens.
    """

    step_seconds: float
    step_seconds_per_slot: float
    step_seconds_per_context_token: float
    kv_tokens: int


DEVICES: Mapping[DeviceName, EmulatedDevice] = {
    "H100": EmulatedDevice(8.5e-3, 45e-6, 59e-9, 357_000),
    "H20": EmulatedDevice(7.3e-3, 282e-6, 50e-9, 449_000),
    "L40S": EmulatedDevice(27e-3, 109e-6, 228e-9, 161_000),
}
"""The devices by their names, which are values of the option `device`."""
