"""The factory of the engine `Torch`; importing it loads no torch."""

from __future__ import annotations

from pathlib import Path

from rljob_core.ports import Engine
from rljob_runtime.engines.factory import EngineFactory
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.torch.fit import check_fit
from rljob_runtime.engines.torch.options import TorchEngineOptions
from rljob_runtime.model.imports import LOADING


def _create(model_path: Path, *, options: TorchEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.torch.engine import TorchEngine

    return TorchEngine(model_path, options=options, decode=decode)


TORCH = EngineFactory(
    _create,
    TorchEngineOptions,
    reads_weights=True,
    check_fit=check_fit,
    is_paced=True,
    preload=(*LOADING, "rljob_runtime.engines.torch.engine"),
)
