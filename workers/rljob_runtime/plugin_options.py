"""What the options of all plug-ins have in common, as manifests hold them; loads none of their packages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class StrictOptions(BaseModel):
    """Options: unknown fields and wrong types are errors, and manifests write the names in camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
    )
