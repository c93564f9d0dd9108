"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.engine_options import EmulatedOptions, EngineOptions, TorchOptions

#: Names and options of the engines.
ENGINES: Mapping[str, type[EngineOptions]] = {"Torch": TorchOptions, "Emulated": EmulatedOptions}


def check_engine(name: str, options: Mapping[str, Any]) -> EngineOptions:
    """An engine's options; loads no engine.

    Raises:
        SpecError: no engine has that name, or it has no such option.
    """
    if name not in ENGINES:
        raise SpecError("spec.rollout.engine.name", f"{name!r} is unknown: write one of {', '.join(ENGINES)}")
    try:
        return ENGINES[name].model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(["spec.rollout.engine.options", *map(str, first["loc"])])
        known = ", ".join(field.alias or key for key, field in ENGINES[name].model_fields.items())
        hint = f"unknown: engine {name} has {known}" if first["type"] == "extra_forbidden" else first["msg"]
        raise SpecError(path, hint) from error


def create_engine(
    name: str,
    *,
    model_path: Path,
    options: Mapping[str, Any],
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Engine:
    """An engine that is not started yet.

    Args:
        name: `spec.rollout.engine.name`.
        model_path: the initial model's folder (the engine `Emulated` reads none).
        options: as `JobConfig.engine_options` gives them.
        decode: text of token ids, for stop strings; by default the tokenizer in the model's folder.

    Raises:
        SpecError: no engine has that name, or it has no such option.
    """
    checked = check_engine(name, options)
    if isinstance(checked, TorchOptions):
        from rljob_runtime.engine_torch import TorchEngine

        return TorchEngine(model_path, options=checked, decode=decode)
    from rljob_runtime.engine_emulated import EmulatedEngine

    return EmulatedEngine(EmulatedOptions.model_validate(checked))
