"""The reference page of the options of every engine, trainer backend, length predictor and tracker of rljob itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rljob_cli.manifest.fields import built_in_options, options_of
from rljob_cli.reference.markdown import row, table
from rljob_runtime.engines.registry import ENGINES
from rljob_runtime.lengths.registry import LENGTH_PREDICTORS
from rljob_runtime.plugins import Registry
from rljob_runtime.trackers.registry import TRACKERS
from rljob_runtime.training.registry import BACKENDS

_ROOMS: tuple[tuple[str, str, Registry[Any], str, str], ...] = (
    ("Engine", "spec.rollout.engine", ENGINES, "engines.md", "`name`; pools may override options."),
    ("Backend", "spec.trainer", BACKENDS, "training.md", "`backend`."),
    ("Length predictor", "spec.rollout.lengthPredictor", LENGTH_PREDICTORS, "lengths.md", "`name`."),
    ("Tracker", "spec.trackers", TRACKERS, "trackers.md", "`name`."),
)  # fmt: skip


def lines() -> Iterator[str]:
    """The page's lines."""
    yield "# Options of engines, backends, length predictors and trackers"
    yield ""
    yield "A plug-in that you install declares its own options ([custom.md](../custom.md)); these are those that come"
    yield "with rljob. A null, or an option that is left out, has the default."
    for noun, path, registry, page, chosen in _ROOMS:
        for name, model in built_in_options(registry).items():
            yield ""
            yield f"## {noun} {name}"
            yield ""
            options = options_of(model, f"{path}.options", f"{noun} {name}")
            if not options:
                yield "It has no options."
                continue
            yield f"`{path}.options`; the {noun.lower()} is chosen by {chosen} More: [{page}](../{page})."
            yield ""
            entries = [entry for option in options for entry in option.walk()]
            *content, _ = table(
                ("option", "type", "default", "meaning"),
                [(f"`{entry.path.removeprefix(f'{path}.options.')}`", *row(entry)[1:]) for entry in entries],
            )
            yield from content
