"""What every object of the API is made of: strict models, rules between fields, immutable fields, common types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError

GROUP = "rljob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields of one object.

    Attributes:
        cel: the expression that the API server evaluates (`self` is the object).
        message: what is wrong and what to write instead.
        holds: the same predicate over the model.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Immutable:
    """Mark of a field that the API server keeps as it was when the object was created.

    Annotate the whole type, `Annotated[X | None, Immutable("…")]`: absent is a value that is kept, too. Of an object,
    every field below is kept.

    Attributes:
        because: what rests on the value.
        instead: what to do who wants another value.
    """

    because: str
    instead: str = "create another RLJob"

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The field's JSON schema, with the mark under `immutable`."""
        return {**handler(core), "immutable": {"because": self.because, "instead": self.instead}}


def _tell_rules(schema: dict[str, Any], model: type[Any]) -> None:
    schema["rules"] = [{"cel": rule.cel, "message": rule.message} for rule in model.rules]


class ApiModel(BaseModel):
    """Base of every object in the API: strict, closed, camelCase. Its JSON schema has the rules under `rules`."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        validate_default=True,
        json_schema_extra=_tell_rules,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.message})
        return self


def enum_field(kind: type[StrEnum]) -> Any:
    """The type of a field with an enum's values: strict mode takes members only, in a manifest they are strings."""
    return Annotated[kind, Field(strict=False)]


_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

Name = Annotated[str, StringConstraints(pattern=_LABEL, max_length=40)]
# Longer, and what a child's name adds would not fit into a host name of 63 characters.
JobName = Annotated[str, StringConstraints(pattern=_LABEL, max_length=52)]
# A Secret's, for instance: any DNS subdomain.
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.:-]*$", max_length=253)]
Text = Annotated[str, StringConstraints(max_length=65536)]
Uri = Annotated[
    str,
    StringConstraints(pattern=r"^([a-z][a-z0-9+.-]*://.+|/.+|\.{0,2}[^:]*)$", min_length=1, max_length=2048),
]
Price = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=32)]
Options = Annotated[dict[str, Any], Field(max_length=256)]
"""What we hand on as it is, and therefore keep whole."""


class ObjectMeta(BaseModel):
    """The part of Kubernetes' object metadata that we read; the rest is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: JobName
    namespace: Annotated[str, StringConstraints(max_length=63)] = "default"
    uid: str | None = None
    generation: int | None = None
