"""The base of every engine's options, which are the fields of `spec.rollout.engine.options`.

Each engine declares its options in its own folder, in a module that loads none of the libraries that the engine needs.
"""

from __future__ import annotations

from typing import Literal

from rljob_runtime.plugins import StrictOptions


class EngineOptions(StrictOptions):
    """Options of an engine: unknown fields and wrong types are errors, and manifests write the names in camelCase."""


def recompute_choice(option: bool | Literal["Auto"]) -> bool | None:
    """The option `recomputeCache` as `CacheKeeper.recompute_cache`."""
    return None if option == "Auto" else option
