"""Fields of the API that a manifest may set and that nothing reads yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Reserved:
    """Mark of a field that is accepted and kept, but has no effect before a capability exists.

    Attributes:
        until: the capability that will read the field.
    """

    until: str


def ineffective_fields(model: BaseModel, path: str = "") -> Iterator[tuple[str, str]]:
    """The reserved fields that an object sets: the path of each, and a sentence that says why it has no effect."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        here = f"{path}.{field.alias or name}" if path else field.alias or name
        mark = next((mark for mark in field.metadata if isinstance(mark, Reserved)), None)
        if mark is not None:
            if value is not None:
                yield here, f"has no effect until {mark.until}"
        elif isinstance(value, BaseModel):
            yield from ineffective_fields(value, here)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from ineffective_fields(item, f"{here}[{index}]")
