"""The factory of the engine `vLLM`; importing it loads no vLLM."""

from __future__ import annotations

from pathlib import Path

from rljob_core.ports import Engine
from rljob_runtime.engines.factory import EngineFactory
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.vllm.fit import check_fit
from rljob_runtime.engines.vllm.options import VllmEngineOptions
from rljob_runtime.model.settings import model_settings


def _create(model_path: Path, *, options: VllmEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.vllm.engine import VllmEngine

    return VllmEngine(model_settings(model_path), options=options, decode=decode)


VLLM = EngineFactory(_create, VllmEngineOptions, reads_weights=True, check_fit=check_fit, is_paced=True)
