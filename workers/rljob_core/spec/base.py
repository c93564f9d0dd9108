"""Building blocks of the API's models: strict models, rules between fields, immutable fields, common types.

Python and the API server must refuse the same manifests with the same messages. What a JSON schema can express is left
to the schema; a form of text or a rule between fields is one object, with one message that both use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

GROUP = "rljob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
HUB = "hub"
"""The cluster of the coordinator, the trainer and the job's main NATS server, which is a JetStream domain of this name;
no other place has it.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields of one object.

    Attributes:
        field: the one that the message names: of the fields, the one that a user would most likely change.
        cel: the expression that the API server evaluates (`self` is the object).
        message: what is wrong and what to write instead.
        holds: the same predicate over the model.
    """

    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Form:
    """What text must look like, in words: of a schema's `pattern` the API server would show the expression alone.

    Attributes:
        pattern: between `^` and `$`, in the syntax that Python and RE2 share.
        message: what is wrong and what to write instead.
    """

    pattern: str
    message: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The text's own schema, and then the form."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The text's JSON schema, with the form among its `rules`."""
        cel = f"self.matches(r'{self.pattern}')"
        return {**handler(core), "rules": [{"cel": cel, "message": self.message}]}

    def _check(self, text: str) -> str:
        # Not `match`, for Python's `$` overlooks a line end; to RE2 `\s` is ASCII.
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            raise _refusal(self.message)
        return text


def _refusal(message: str, field: str = "") -> PydanticCustomError:
    """What pydantic reports as the error of type `rule`; `field` is below where pydantic says it is."""
    return PydanticCustomError("rule", "{message}", {"message": message, "field": field})


@dataclass(frozen=True, slots=True)
class Immutable:
    """Mark of a field that the API server keeps as it was when the object was created.

    Annotate the whole type, `Annotated[X | None, Immutable("…")]`: absent is a value that is kept, too. Of an object,
    every field below is kept, except some.

    Attributes:
        because: what rests on the value.
        instead: what to do who wants another value.
        among: values that may replace each other.
        excepting: of an object, the fields that may change.
    """

    because: str
    instead: str = "create another RLJob"
    among: tuple[str, ...] = ()
    excepting: tuple[str, ...] = ()

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The field's JSON schema, with the mark under `immutable`."""
        mark = {
            "because": self.because,
            "instead": self.instead,
            "among": self.among,
            "excepting": self.excepting,
        }
        return {**handler(core), "immutable": mark}

    def keeps(self, field: str, path: str) -> bool:
        """Whether what is at a path is kept, because of this mark of a field."""
        if path != field and not path.startswith(f"{field}."):
            return False
        return path.removeprefix(field).removeprefix(".").partition(".")[0] not in self.excepting

    def allows(self, before: object, now: object) -> bool:
        """Whether the field may go from one value to another."""
        return before == now or (before in self.among and now in self.among)


def _tell_rules(schema: dict[str, Any], model: type[Any]) -> None:
    schema["rules"] = [{"cel": r.cel, "message": r.message, "field": r.field} for r in model.rules]


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
        allow_inf_nan=False,  # JSON has neither
        json_schema_extra=_tell_rules,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        """The API server drops a null that a field cannot take; then the default comes, or the field is missing."""
        if not isinstance(given, dict):
            return given
        dropped = {
            key
            for name, field in cls.model_fields.items()
            for key in (name, field.alias)
            if given.get(key, ...) is None and NoneType not in get_args(field.annotation)
        }
        return {key: value for key, value in given.items() if key not in dropped} if dropped else given

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise _refusal(rule.message, rule.field)
        return self


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation: itself, or in `X | None`, `list[X]`, `Annotated[X, …]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {Union, UnionType, list, Annotated}:
        return next((found for part in get_args(annotation) if (found := model_in(part)) is not None), None)
    return None


@dataclass(frozen=True, slots=True)
class Grows:
    """Mark of a number with a default that the API server never lets become smaller.

    Attributes:
        because: what a smaller one would do.
    """

    because: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The field's JSON schema, with the mark under `grows`."""
        return {**handler(core), "grows": {"because": self.because}}


def immutable_fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Immutable]]:
    """Every field marked `Immutable` in a model and below, with its path, lists left out: `spec.rollout.pools.name`."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}" if path else field.alias or name
        marks = [mark for mark in field.metadata if isinstance(mark, Immutable)]
        below = model_in(field.annotation)
        if marks:
            yield here, marks[0]
        elif below is not None:
            yield from immutable_fields(below, here)


def enum_field(kind: type[StrEnum]) -> Any:
    """The type of a field with an enum's values: strict mode takes members only, in a manifest they are strings."""
    return Annotated[kind, Field(strict=False)]


_LABEL = "lower-case letters, digits and hyphens, a letter or digit at either end"

Name = Annotated[
    str,
    StringConstraints(max_length=40),
    Form(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", f"must be a name of {_LABEL}: for instance spot-h100"),
]
# Longer, and what a child's name adds would not fit into a host name of 63 characters. Its trainer's Service is named
# after it, and a Service's name must not begin with a digit.
JobName = Annotated[
    str,
    StringConstraints(max_length=52),
    Form(
        r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        f"must be a name of {_LABEL}, and begin with a letter: its pods' host names begin with it",
    ),
]
Namespace = Annotated[
    str,
    StringConstraints(max_length=63),
    Form(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", f"must be a name of {_LABEL}"),
]
ObjectName = Annotated[
    str,
    StringConstraints(max_length=253),
    Form(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        f"must be the name of a Kubernetes object in this namespace, {_LABEL}, dots between such names",
    ),
]
ControllerName = Annotated[
    str,
    StringConstraints(max_length=253),
    Form(
        r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        "must be a domain and a controller's name: for instance rljob.dev/operator",
    ),
]
Identifier = Annotated[
    str,
    StringConstraints(max_length=253),
    Form(
        r"^[A-Za-z][A-Za-z0-9_.:-]*$",
        "must be a name, or an entry point such as package.module:function: a letter, then letters, digits, _ . : -",
    ),
]
Image = Annotated[
    str,
    StringConstraints(max_length=1024),
    Form(r"^\S+$", "must be an image's name without spaces, for instance rljob:1.2; or leave the field out"),
]
Text = Annotated[str, StringConstraints(max_length=65536)]
Uri = Annotated[
    str,
    StringConstraints(max_length=2048),
    Form(
        r"^([a-z][a-z0-9+.-]*://[^\s\x00-\x1f]+|[^:\s\x00-\x1f][^:\x00-\x1f]*)$",
        "must be a path, or a URI with its scheme: file:///models/tiny or pvc://claim/path",
    ),
]
Price = Annotated[
    str,
    StringConstraints(max_length=32),
    Form(r"^[0-9]+(\.[0-9]+)?$", 'must be a decimal number as text, without a currency: for instance "2.10"'),
]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""As large as Kubernetes' own counts: no API server takes a number of more than 64 bits for a whole one."""
PositiveCount = Annotated[int, Field(ge=1, le=2**31 - 1)]
MOST_LEVELS = 16
"""Of what is handed on as it is: pod templates need a dozen."""


def _is_shallow(given: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [given]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise _refusal(
            f"must not be nested more than {MOST_LEVELS} levels deep: flatten it, or put it into a file"
        )
    return given


Options = Annotated[dict[str, Any], Field(max_length=256), AfterValidator(_is_shallow)]
"""What we hand on as it is, and therefore keep whole."""


class ObjectMeta(BaseModel):
    """The part of Kubernetes' object metadata that we read; the rest is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: JobName
    namespace: Namespace = "default"
    uid: str | None = None
    generation: int | None = None
