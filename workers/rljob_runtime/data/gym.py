"""Generates items of reasoning-gym's tasks, endlessly and by index. Importing this module takes seconds: do it late."""

from __future__ import annotations

import difflib
import sys
import threading
import warnings
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import xxhash

from rljob_core.errors import SpecError

_replacing = threading.Lock()


class _PostponedModule(ModuleType):
    """Stands for a module in `sys.modules` until something uses one of its attributes.

    `importlib.util.LazyLoader` does not do: before Python 3.12, `import name` alone makes it load.
    """

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        with _replacing:
            if sys.modules.get(name) is self:
                del sys.modules[name]
        return getattr(import_module(name), attribute)


def postpone_import(name: str) -> None:
    """Let `import name` succeed at once, and import the module when an attribute of it is used for the first time.

    Args:
        name: of a module, which is not below another one.
    """
    if name not in sys.modules:
        sys.modules[name] = _PostponedModule(name)


# The two games of life use it. It imports matplotlib's pyplot, which takes almost as long as all other imports do.
postpone_import("cellpylib")
with warnings.catch_warnings():
    # Its dependencies compile with SyntaxWarnings, which the user can do nothing about.
    warnings.simplefilter("ignore")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
    from reasoning_gym.utils import extract_answer

_TASKS = "https://github.com/open-thought/reasoning-gym"
#: Tasks of reasoning-gym 0.1.25 that iterate over sets of strings: two processes make the same item of an index only
#: if both use the same hash seed.
_HASH_ORDERED = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)


def check_task(name: str, path: str) -> None:
    """Check that there is a task of this name.

    Raises:
        SpecError: there is none; `path` is the field that names it.
    """
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"{_TASKS} lists the tasks"
        raise SpecError(path, f"reasoning-gym has no task {name!r}: {hint}")


class GymSource:
    """An `ItemSource` of one task's items.

    A data set of reasoning-gym has `size` items. Item `size` is the first item of a data set with the next seed, and so
    on, as in reasoning-gym's `ReseedingDataset`, but with access by index. The seeds are hashes, because a task makes
    item `i` from `seed + i`: with consecutive seeds, held-out items would be training items at other indices.

    Args:
        name: the task's name.
        options: of the task's configuration.
        seed: of the sequence.
        path: the manifest's field that describes the data, for errors.

    Raises:
        SpecError: there is no such task, or it refuses the options.
    """

    def __init__(self, name: str, *, options: Mapping[str, Any], seed: int, path: str) -> None:
        check_task(name, f"{path}.dataset")
        if name in _HASH_ORDERED and sys.flags.hash_randomization:
            raise SpecError(
                f"{path}.dataset",
                f"items of {name!r} differ between processes: set PYTHONHASHSEED=0 for all of the job's processes",
            )
        known = sorted({f.name for f in fields(DATASETS[name][1])} - {"seed"})
        for option in options:
            if option == "seed":
                raise SpecError(f"{path}.options.seed", f"write {path}.seed instead")
            if option not in known:
                close = difflib.get_close_matches(option, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}"
                raise SpecError(f"{path}.options.{option}", f"{name} has no such option: {hint}")
        self._name = name
        self._options = dict(options)
        self._seed = seed
        self._chunk = lru_cache(maxsize=8)(self._create)
        try:
            self._size = len(self._chunk(0))
        except Exception as error:  # the configurations assert, and compare values of any type
            detail = str(error) or type(error).__name__
            raise SpecError(f"{path}.options", f"{name} refuses them: {detail}") from error

    def item(self, index: int) -> dict[str, Any]:
        """Return the item at `index`: `question`, `answer` and `metadata`."""
        chunk, offset = divmod(index, self._size)
        item: dict[str, Any] = self._chunk(chunk)[offset]
        return item

    def verify(self, *, completion: str, item: Mapping[str, Any]) -> float:
        """Return the task's own score of an answer, from 0 to 1.

        The answer is the text between the last `<answer>` tags, or else the whole completion, stripped.
        """
        answer = extract_answer(completion)
        score: float = self._chunk(0).score_answer(completion.strip() if answer is None else answer, item)
        return score

    def _create(self, chunk: int) -> Any:
        # 31 bits, because tasks add the index to the seed and NumPy's seeds have 32 bits.
        seed = xxhash.xxh3_64_intdigest(f"{self._seed}:{chunk}".encode()) & 0x7FFF_FFFF
        return reasoning_gym.create_dataset(self._name, seed=seed, **self._options)
