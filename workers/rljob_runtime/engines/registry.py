"""The engines by the names that `spec.rollout.engine.name` uses; looking one up loads none of our engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_core.ports import Engine
from rljob_runtime.engines.emulated.factory import EMULATED
from rljob_runtime.engines.factory import NAME, OPTIONS, EngineFactory, check_response, longest_sequence
from rljob_runtime.engines.http.factory import HTTP
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.torch.factory import TORCH
from rljob_runtime.engines.vllm.factory import VLLM
from rljob_runtime.model.settings import model_settings
from rljob_runtime.plugins import Registry


def _adopt(offered: object) -> EngineFactory:
    """A factory from what an entry point refers to, which may say that the engines `is_paced`."""
    return replace(EngineFactory.of(offered), is_paced=bool(getattr(offered, "is_paced", False)))


ENGINES = Registry[EngineFactory](
    "engine",
    "rljob.engines",
    {
        "Torch": TORCH,
        "vLLM": VLLM,
        "HTTP": HTTP,
        "Emulated": EMULATED,
    },
    _adopt,
)


def find_engine(name: str) -> EngineFactory:
    """The factory of the engine with that name; loads none of our engines.

    Raises:
        SpecError: no engine has that name, or it does not load.
    """
    return ENGINES.find(name, field=NAME)


def check_engine(name: str, options: Mapping[str, Any]) -> Any:
    """An engine's options, as its own model of them (a dict, if it has none); loads none of our engines.

    Raises:
        SpecError: no engine has that name, it does not load, or it has no such option.
    """
    return find_engine(name).check(options, field=OPTIONS, whose=f"engine {name}")


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


def room_of(name: str, *, model_path: Path, options: Mapping[str, Any]) -> int | None:
    """Tokens of a prompt and its response together that an engine takes at most; None if that is not known.

    Raises:
        SpecError: as `check_engine`, or the model's settings cannot be read.
    """
    checked = check_engine(name, options)
    if find_engine(name).check_fit is None:
        return None
    return longest_sequence(model_settings(model_path), checked.max_length)


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
