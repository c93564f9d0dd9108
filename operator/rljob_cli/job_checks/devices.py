"""Whether this machine has the GPU that engines and backends are told to compute on; torch is not loaded for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError

_DEVICES = ("nvidia[0-9]*", "dxg", "kfd")
"""Files below /dev that drivers of GPUs make: NVIDIA's, that of Windows' Linux, AMD's."""
_HIDDEN = {"", "-1", "none", "NoDevFiles"}
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs from a process."""


def has_gpu(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a process of this machine sees a GPU."""
    if environment.get("CUDA_VISIBLE_DEVICES", "0") in _HIDDEN:
        return False
    return any(any(devices.glob(pattern)) for pattern in _DEVICES)


def check_device(options: Any, *, field: str) -> None:
    """Check that the device that options name is there.

    Args:
        options: an engine's or a backend's own, checked.
        field: of the manifest that holds them.

    Raises:
        SpecError: it is a GPU, and there is none.
    """
    if getattr(options, "device", None) == "cuda" and not has_gpu():
        raise SpecError(
            f"{field}.device",
            "cuda needs a GPU, and this machine shows none (/dev/nvidia*, CUDA_VISIBLE_DEVICES): write cpu, or run "
            "the job where there is one",
        )
