"""The factory of the engine `Emulated`."""

from __future__ import annotations

from pathlib import Path

from rljob_core.ports import Engine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.engines.factory import EngineFactory
from rljob_runtime.engines.stops import Decode


def _create(model_path: Path, *, options: EmulatedEngineOptions, decode: Decode | None) -> Engine:  # noqa: ARG001
    from rljob_runtime.engines.emulated.engine import EmulatedEngine

    return EmulatedEngine(options)


EMULATED = EngineFactory(
    _create,
    EmulatedEngineOptions,
    is_paced=True,
    preload=("rljob_runtime.engines.emulated.engine",),
    # Longer than any request allows, and as slow as real ones: requests still run when a check acts.
    endless_options={
        "stepSeconds": 0.002,
        "lengths": {"median": 1e6, "sigma": 0.0, "promptSigma": 0.0, "max": 1_000_000},
    },
)
