"""What the registry holds of each engine: how to create it, and what can be checked before that."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.model.settings import ModelSettings
from rljob_runtime.plugins import Factory


@dataclass(frozen=True, slots=True)
class EngineFactory(Factory[Engine]):
    """Creates engines of one kind, and says what can be known about them before one is created.

    Attributes:
        reads_weights: it reads the initial weights from the model's folder, so the folder must hold them.
        check_fit: checks that it can serve a model with its options, without loading either; raises SpecError. None:
            its constructor checks.
        check_pools: the problems that pools with this engine would cause each other, or none.
        check_server: asks what the engine depends on outside its process whether it can serve; raises SpecError.
        is_paced: between its tokens it waits for nothing outside its pod, so that its pauses say how long later ones
            may be (`rljob_core.hang_limit`).
        endless_options: options under which it ends no response by itself, for the checks of the engine contract.
    """

    reads_weights: bool = False
    check_fit: Callable[[ModelSettings, Any], None] | None = None
    check_pools: Callable[[JobConfig], list[SpecError]] | None = None
    check_server: Callable[[Any], Coroutine[Any, Any, None]] | None = None
    is_paced: bool = False
    endless_options: Mapping[str, Any] = field(default_factory=dict)
