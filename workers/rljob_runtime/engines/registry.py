"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_core.ports import Engine
from rljob_runtime.engines.fit import check_http, check_response, check_torch, check_vllm
from rljob_runtime.engines.options import (
    EmulatedEngineOptions,
    HttpEngineOptions,
    TorchEngineOptions,
    VllmEngineOptions,
)
from rljob_runtime.model.settings import ModelSettings, model_settings
from rljob_runtime.plugins import Factory, Registry

Decode = Callable[[Sequence[int]], str]


def _torch(model_path: Path, *, options: TorchEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.torch.engine import TorchEngine

    return TorchEngine(model_path, options=options, decode=decode)


def _emulated(model_path: Path, *, options: EmulatedEngineOptions, decode: Decode | None) -> Engine:  # noqa: ARG001
    from rljob_runtime.engines.emulated import EmulatedEngine

    return EmulatedEngine(options)


def _vllm(model_path: Path, *, options: VllmEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.vllm.engine import VllmEngine

    return VllmEngine(model_settings(model_path), options=options, decode=decode)


def _http(model_path: Path, *, options: HttpEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.http.engine import HttpEngine

    return HttpEngine(model_settings(model_path), options=options, decode=decode)


ENGINES = Registry[Factory[Engine]](
    "engine",
    "rljob.engines",
    {
        "Torch": Factory(_torch, TorchEngineOptions),
        "vLLM": Factory(_vllm, VllmEngineOptions),
        "HTTP": Factory(_http, HttpEngineOptions),
        "Emulated": Factory(_emulated, EmulatedEngineOptions),
    },
    Factory.of,
)


#: Of the engines that read a model; what others need of one, they say when they are made.
_FITS: dict[str, Callable[[ModelSettings, Any], None]] = {
    "Torch": check_torch,
    "vLLM": check_vllm,
    "HTTP": check_http,
}


def check_engine(name: str, options: Mapping[str, Any]) -> Any:
    """An engine's options, as its own model of them (a dict, if it has none); loads none of our engines.

    Raises:
        SpecError: no engine has that name, it does not load, or it has no such option.
    """
    factory = ENGINES.find(name, field="spec.rollout.engine.name")
    return factory.check(options, field="spec.rollout.engine.options", whose=f"engine {name}")


def check_fit(
    name: str, *, model_path: Path, options: Mapping[str, Any], max_tokens: int | None = None
) -> None:
    """Whether an engine can serve a model, as far as that is known without loading either.

    Args:
        name: `spec.rollout.engine.name`.
        model_path: the initial model's folder.
        options: as `JobConfig.engine_options` gives them.
        max_tokens: of the longest response, if a job asks for it.

    Raises:
        SpecError: as `check_engine`, the engine cannot, or its package is missing.
    """
    checked = check_engine(name, options)
    if name not in _FITS:
        return
    model = model_settings(model_path)
    _FITS[name](model, checked)
    if max_tokens is not None:
        check_response(model, max_length=checked.max_length, max_tokens=max_tokens)


def create_engine(
    name: str, *, model_path: Path, options: Mapping[str, Any], decode: Decode | None = None
) -> Engine:
    """An engine that is not started yet.

    Args:
        name: `spec.rollout.engine.name`.
        model_path: the initial model's folder (the engine `Emulated` reads none).
        options: as `JobConfig.engine_options` gives them.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.

    Raises:
        SpecError: as `check_fit`.
    """
    check_fit(name, model_path=model_path, options=options)
    factory = ENGINES.find(name, field="spec.rollout.engine.name")
    return factory.create(model_path, options=check_engine(name, options), decode=decode)
