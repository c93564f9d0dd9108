"""The base of every engine's options, which are the fields of `spec.rollout.engine.options`.

Each engine declares its options in its own folder, in a module that loads none of the libraries that the engine needs.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class EngineOptions(BaseModel):
    """Options of an engine: unknown fields and wrong types are errors, and manifests write the names in camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", strict=True
    )
