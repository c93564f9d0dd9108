"""The engines by the names that `spec.rollout.engine.name` uses; looking one up loads none of our engines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.engines.fit import check_http, check_response, check_torch, check_vllm, shared_servers
from rljob_runtime.engines.options import (
    EmulatedEngineOptions,
    HttpEngineOptions,
    TorchEngineOptions,
    VllmEngineOptions,
)
from rljob_runtime.engines.stops import Decode
from rljob_runtime.model.settings import ModelSettings, model_settings
from rljob_runtime.plugins import Factory, Registry


@dataclass(frozen=True, slots=True)
class EngineFactory(Factory[Engine]):
    """Creates engines of one kind, and says what can be known about them before one is created.

    Attributes:
        reads_weights: it reads the initial weights from the model's folder, so the folder must hold them.
        check_fit: checks that it can serve a model with its options, without loading either; raises SpecError. None:
            its constructor checks.
        check_pools: the problems that pools with this engine would cause each other, or none.
        check_server: asks what the engine depends on outside its process whether it can serve; raises SpecError.
        endless_options: options under which it ends no response by itself, for the checks of the engine contract.
    """

    reads_weights: bool = False
    check_fit: Callable[[ModelSettings, Any], None] | None = None
    check_pools: Callable[[JobConfig], list[SpecError]] | None = None
    check_server: Callable[[Any], Coroutine[Any, Any, None]] | None = None
    endless_options: Mapping[str, Any] = field(default_factory=dict)


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


async def _ask_server(options: HttpEngineOptions) -> None:
    from rljob_runtime.engines.http.capabilities import check_server

    await check_server(options)


ENGINES = Registry[EngineFactory](
    "engine",
    "rljob.engines",
    {
        "Torch": EngineFactory(_torch, TorchEngineOptions, reads_weights=True, check_fit=check_torch),
        "vLLM": EngineFactory(_vllm, VllmEngineOptions, reads_weights=True, check_fit=check_vllm),
        "HTTP": EngineFactory(
            _http,
            HttpEngineOptions,
            check_fit=check_http,
            check_pools=shared_servers,
            check_server=_ask_server,
        ),
        "Emulated": EngineFactory(
            _emulated,
            EmulatedEngineOptions,
            # Longer than any request allows, and as slow as real ones: requests still run when a check acts.
            endless_options={
                "stepSeconds": 0.002,
                "lengths": {"median": 1e6, "sigma": 0.0, "promptSigma": 0.0, "max": 1_000_000},
            },
        ),
    },
    EngineFactory.of,
)


def find_engine(name: str) -> EngineFactory:
    """The factory of the engine with that name; loads none of our engines.

    Raises:
        SpecError: no engine has that name, or it does not load.
    """
    return ENGINES.find(name, field="spec.rollout.engine.name")


def check_engine(name: str, options: Mapping[str, Any]) -> Any:
    """An engine's options, as its own model of them (a dict, if it has none); loads none of our engines.

    Raises:
        SpecError: no engine has that name, it does not load, or it has no such option.
    """
    return find_engine(name).check(options, field="spec.rollout.engine.options", whose=f"engine {name}")


def check_fit(
    name: str, *, model_path: Path, options: Mapping[str, Any], max_tokens: int | None = None
) -> None:
    """Check that an engine can serve a model, as far as that is known without loading either.

    Args:
        name: `spec.rollout.engine.name`.
        model_path: the initial model's folder.
        options: as `JobConfig.engine_options` gives them.
        max_tokens: of the longest response, if a job asks for it.

    Raises:
        SpecError: as `check_engine`, the engine cannot, or its package is missing.
    """
    checked = check_engine(name, options)
    check = find_engine(name).check_fit
    if check is None:
        return
    model = model_settings(model_path)
    check(model, checked)
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
    return find_engine(name).create(model_path, options=check_engine(name, options), decode=decode)
