"""Finds the engines, trainer backends and rewards that a manifest names: built in, or installed by a distribution.

A distribution offers a plugin as an entry point, whose name is the name in the manifest:

| group | what it refers to |
|---|---|
| `rljob.engines` | a callable `(model_path, *, options, decode)` that returns an `Engine` |
| `rljob.backends` | a callable `(config, *, options, model_path, rank, world_size)` that returns a `TrainerBackend` |
| `rljob.rewards` | a `Reward` |

A name must be unique: if two distributions offer it, or a distribution offers the name of a built-in plugin, it is
refused. An entry point is loaded when its name is used, never before, so a plugin that is installed and not used costs
nothing and breaks nothing.

Names are looked up by the programs that run the plugins: `rljob run`, `rljob validate`, and the workers in their pods.
The operator looks up none: it does not know what the user's images contain, and should not have to be reinstalled for
each plugin. A pod that does not know a name ends with the same message.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from rljob_core.errors import SpecError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Factory(Generic[T]):
    """Creates an engine or a backend.

    Attributes:
        create: creates one.
        options: pydantic model of its options; None accepts any options, as a dict.
    """

    create: Callable[..., T]
    options: type[BaseModel] | None

    @classmethod
    def of(cls, made: object) -> Factory[T]:
        """The factory for the callable of an entry point; its attribute `options_model` may be a pydantic model.

        Raises:
            TypeError: it is not callable, or `options_model` is not a pydantic model.
        """
        if not callable(made):
            raise TypeError(f"it is no callable, but {type(made).__name__}")
        options = getattr(made, "options_model", None)
        if options is not None and not (isinstance(options, type) and issubclass(options, BaseModel)):
            raise TypeError(f"its options_model is no pydantic model, but {options!r}")
        return cls(made, options)

    def check(self, options: Mapping[str, Any], *, field: str, whose: str) -> Any:
        """The options as an instance of their model, or as a dict.

        Args:
            options: from the manifest.
            field: their path in the manifest, for messages.
            whose: the plugin they belong to, for messages: `engine Torch`.

        Raises:
            SpecError: an option is unknown, or its value is wrong.
        """
        if self.options is None:
            return dict(options)
        try:
            return self.options.model_validate(dict(options))
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join([field, *map(str, first["loc"])])
            if first["type"] != "extra_forbidden" or len(first["loc"]) > 1:
                raise SpecError(path, first["msg"]) from error
            known = ", ".join(info.alias or key for key, info in self.options.model_fields.items())
            raise SpecError(path, f"unknown: {whose} has {known or 'no options'}") from error


class Registry(Generic[T]):
    """The plugins of one kind, by name.

    Args:
        noun: the kind, for messages: `engine`.
        group: of the entry points.
        built_in: the plugins of rljob itself.
        adopt: turns what an entry point refers to into a plugin like the built-in ones; raises TypeError if it cannot.
        otherwise: what a manifest may write instead of a name, for messages.
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
        """The distributions that offer each name, with their versions: built-in names first, then others in order."""
        found = {name: [_OURS] for name in self._built_in}
        for point in self._points():
            found.setdefault(point.name, []).append(_distribution(point))
        return found

    def find(self, name: str, *, field: str) -> T:
        """The plugin of that name.

        Args:
            name: from the manifest.
            field: its path in the manifest, for messages.

        Raises:
            SpecError: no plugin has the name, several have it, or the plugin does not load.
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

    def known(self) -> str:
        """All names, those of other distributions with the distribution, for messages."""
        return ", ".join(
            name if offering == [_OURS] else f"{name} (of {' and '.join(offering)})"
            for name, offering in self.offers().items()
        )

    def _points(self) -> list[metadata.EntryPoint]:
        return sorted(metadata.entry_points(group=self._group), key=lambda point: point.name)

    def _load(self, point: metadata.EntryPoint, field: str) -> T:
        whose = f"the {self._noun} {point.name!r} of {_distribution(point)} ({point.value})"
        try:
            made = point.load()
        except Exception as error:  # a distribution's module may raise anything
            detail = f"{type(error).__name__}: {error}"
            raise SpecError(field, f"{whose} does not load: {detail}; mend or reinstall it") from error
        try:
            return self._adopt(made)
        except TypeError as error:
            raise SpecError(field, f"{whose} is not what {self._group} must be: {error}") from error

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.offers(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return (
            f"{name!r} is unknown: {hint}write one of {self.known()}{self._otherwise}, or install what offers it as "
            f"one of the entry points {self._group}"
        )


_OURS = "rljob itself"


def _distribution(point: metadata.EntryPoint) -> str:
    if point.dist is None:
        return "an unknown distribution"
    return f"{point.dist.name} {point.dist.version}"
