"""What a manifest names: engines, trainer backends and rewards, our own and those that distributions install.

A distribution offers one as an entry point, whose name is what a manifest writes:

| group | what it refers to |
|---|---|
| `rljob.engines` | a callable `(model_path, *, options, decode)` that returns an `Engine` |
| `rljob.backends` | a callable `(config, *, options, model_path, rank, world_size)` that returns a `TrainerBackend` |
| `rljob.rewards` | a `Reward` |

One name means one thing: where two distributions offer it, or one offers a name of ours, it is refused. An entry point
is loaded when its name is used, never before, so what is installed and not used costs nothing and breaks nothing.

Who looks a name up has to run it: `rljob run`, `rljob validate`, and the workers in their pods. The operator looks up
none. It cannot know what an image of the user's holds, and an operator that had to be installed anew for each plugin
would be everybody's; a pod that does not know the name ends with the same message.
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
    """What makes an engine or a backend.

    Attributes:
        create: makes one.
        options: model of its options; None takes any, as a dict.
    """

    create: Callable[..., T]
    options: type[BaseModel] | None

    @classmethod
    def of(cls, made: object) -> Factory[T]:
        """What an entry point refers to: a callable, whose attribute `options_model` names a pydantic model, if any.

        Raises:
            TypeError: it is something else.
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
            options: as the manifest has them.
            field: where it has them.
            whose: for messages, as `engine Torch`.

        Raises:
            SpecError: one is unknown or wrong.
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
    """What has a name among engines, among backends or among rewards.

    Args:
        noun: what one is called, as `engine`.
        group: of the entry points.
        built_in: ours.
        adopt: turns what an entry point refers to into what ours are; raises TypeError with what is wrong with it.
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
        """The distributions with their versions that offer each name: ours first, then the others by name."""
        found = {name: [_OURS] for name in self._built_in}
        for point in self._points():
            found.setdefault(point.name, []).append(_distribution(point))
        return found

    def find(self, name: str, *, field: str) -> T:
        """What has that name.

        Args:
            name: as the manifest has it.
            field: where it has it.

        Raises:
            SpecError: nothing has it, more than one has it, or it does not load.
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
        """All names, and where those that are not ours come from, as a message lists them."""
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
