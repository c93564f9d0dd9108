"""Registries of plug-ins by name, built in or installed: engines, backends, losses, rewards, environments and others.

A distribution offers one as an entry point, whose name is what a manifest writes:

| group | what the entry point refers to |
|---|---|
| `rljob.engines` | a callable `(model_path, *, options, decode)` that returns an `Engine` |
| `rljob.backends` | a callable `(config, *, options, model_path, rank, world_size)` that returns a `TrainerBackend` |
| `rljob.losses` | a `Loss` |
| `rljob.rewards` | a `Reward` |
| `rljob.environments` | a class whose instances are `Environment`s, called with their options by keyword |
| `rljob.lengths` | a callable `(config, *, options)` that returns a `LengthPredictor` |
| `rljob.trackers` | a callable `(run, *, options)` that returns a `Tracker` |

One name means one thing: a name that two distributions offer, or that a distribution and rljob itself offer, is
refused. An entry point is loaded when a manifest uses its name, never before, so a distribution that is installed but
not used costs nothing and breaks nothing.

`rljob run`, `rljob validate` and the workers in their pods look names up, because they run what has the name. The
operator does not: it cannot know what an image of the user's holds. A pod whose image does not offer a name ends with
the message that `rljob validate` would print.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from rljob_core.advice import advice, nearest
from rljob_core.errors import SpecError
from rljob_core.words import error_in_words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Factory(Generic[T]):
    """Creates plug-ins of one kind: engines, backends, length predictors. Each room adds what else it needs to know.

    Attributes:
        create: creates one.
        options: model of its options; None takes any, as a dict.
        preload: modules that `create` imports, where a process may import them before it forks: without a GPU's driver.
    """

    create: Callable[..., T]
    options: type[BaseModel] | None
    preload: tuple[str, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(cls, offered: object) -> Self:
        """A factory from what an entry point refers to: a callable, which may name its model as `options_model`.

        Raises:
            TypeError: it is something else.
        """
        if not callable(offered):
            raise TypeError(f"it is not callable, but {type(offered).__name__}")
        options = getattr(offered, "options_model", None)
        if options is not None and not (isinstance(options, type) and issubclass(options, BaseModel)):
            raise TypeError(f"its options_model is not a pydantic model, but {options!r}")
        return cls(offered, options)

    def check(self, options: Mapping[str, Any], *, field: str, whose: str) -> Any:
        """The options as an instance of their model, or as a dict where there is no model.

        Args:
            options: as written in the manifest.
            field: path of the manifest's field, for messages.
            whose: what has these options, for messages: `engine Torch`.

        Raises:
            SpecError: an option is unknown or has a wrong value.
        """
        if self.options is None:
            return dict(options)
        try:
            return self.options.model_validate(dict(options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join([field, *map(str, first["loc"])])
            if first["type"] != "extra_forbidden" or len(first["loc"]) > 1:
                raise SpecError(path, advice(self.options, dict(options), first)) from error
            names = [info.alias or key for key, info in self.options.model_fields.items()]
            close = nearest(str(first["loc"][0]), names, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise SpecError(path, f"unknown: {hint}{whose} has {', '.join(names) or 'no options'}") from error


class Registry(Generic[T]):
    """The names of one kind of plug-in, and what each name refers to.

    Args:
        noun: the kind, as messages call it: `engine`.
        group: group of the entry points.
        built_in: what rljob itself offers, by name.
        adopt: converts what an entry point refers to into `T`; raises TypeError with what is wrong with it.
        otherwise: what else a manifest may write, for messages.
    """

    def __init__(
        self,
        noun: str,
        group: str,
        built_in: Mapping[str, T],
        adopt: Callable[[Any], T],
        *,
        otherwise: str = "",
    ) -> None:
        self._noun = noun
        self._group = group
        self._built_in = built_in
        self._adopt = adopt
        self._otherwise = f", {otherwise}" if otherwise else ""

    def offers(self) -> dict[str, list[str]]:
        """The distributions, with their versions, that offer each name: built-in names first, then others by name."""
        found = {name: [_OURS] for name in self._built_in}
        for point in self._points():
            found.setdefault(point.name, []).append(_distribution(point))
        return found

    def find(self, name: str, *, field: str) -> T:
        """What the name refers to.

        Args:
            name: as written in the manifest.
            field: path of the manifest's field, for messages.

        Raises:
            SpecError: nothing has that name, more than one distribution offers it, or it does not load.
        """
        points = [point for point in self._points() if point.name == name]
        if len(points) + (name in self._built_in) > 1:
            offering = " and ".join(self.offers()[name])
            raise SpecError(field, f"{name!r} is offered by {offering}: uninstall all but one")
        if name in self._built_in:
            return self._built_in[name]
        if not points:
            raise SpecError(field, self._unknown(name))
        return self._load(points[0], field)

    def built_in(self, name: str) -> T | None:
        """What rljob itself offers by that name; loads no plug-in."""
        return self._built_in.get(name)

    def known(self) -> str:
        """All names, each with the distribution that offers it unless it is built in, as messages list them."""
        return ", ".join(
            name if offering == [_OURS] else f"{name} (of {' and '.join(offering)})"
            for name, offering in self.offers().items()
        )

    def _points(self) -> Sequence[metadata.EntryPoint]:
        return _entry_points(self._group, tuple(sys.path))

    def _load(self, point: metadata.EntryPoint, field: str) -> T:
        whose = f"the {self._noun} {point.name!r} of {_distribution(point)} ({point.value})"
        try:
            offered = point.load()
        except (Exception, SystemExit) as error:  # a distribution's module may raise anything
            detail = f"{type(error).__name__}: {error}"
            raise SpecError(field, f"{whose} does not load: {detail}; repair or reinstall it") from error
        try:
            return self._adopt(offered)
        except TypeError as error:
            raise SpecError(field, f"{whose} is not what {self._group} must be: {error}") from error

    def _unknown(self, name: str) -> str:
        close = nearest(name, self.offers(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return (
            f"{name!r} is unknown: {hint}write one of {self.known()}{self._otherwise}, or install what offers it as "
            f"one of the entry points {self._group}"
        )


def imported(name: str, noun: str, adopt: Callable[[Any], T], *, field: str) -> T:
    """What `package.module:attribute` names, of a module on the path.

    Args:
        name: as written in the manifest.
        noun: what the attribute should be, for messages: `function`.
        adopt: as of `Registry`.
        field: path of the manifest's field, for messages.

    Raises:
        SpecError: the module cannot be imported, or the attribute is missing or something else.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except BaseException as error:  # a user's module may raise anything: SystemExit, KeyboardInterrupt
        raise SpecError(field, f"{module_name} cannot be imported: {error_in_words(error)}") from error
    if not hasattr(module, attribute):
        raise SpecError(field, f"{module_name} has no {noun} {attribute!r}")
    try:
        return adopt(getattr(module, attribute))
    except TypeError as error:
        raise SpecError(field, f"{name}: {error}") from error


_OURS = "rljob itself"


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> Sequence[metadata.EntryPoint]:  # noqa: ARG001
    """Those of all distributions on the path, `sys.path`: read once, because each distribution has them in a file."""
    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def _distribution(point: metadata.EntryPoint) -> str:
    if point.dist is None:
        return "an unknown distribution"
    return f"{point.dist.name} {point.dist.version}"


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
