"""The protocol with one of its guards turned off, for the checks to find out.

    python tests/core/mutants.py model NAME       # exits 1 and says how, once a check has caught it; 0 if none does
    python tests/core/mutants.py simulation NAME  # the same, by whole simulated jobs

A mutant is a change of one module's source, made as it is imported; nothing on the disk changes.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from mutant_catalogue import MUTANTS, Mutant

NO_PROGRAM = ("TypeError", "NameError", "AttributeError", "SyntaxError", "UnboundLocalError")
"""What a mutant raises that is badly written."""
SEEDS = 600
"""Simulated jobs in which a mutant must be found out."""


class _Mutating(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with a guard less."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        found = PathFinder.find_spec(name, path, target)
        assert found is not None
        found.loader = self
        return found

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        assert module.__spec__.origin is not None
        source = Path(module.__spec__.origin).read_text(encoding="utf-8")
        if source.count(self._mutant.guard) != 1:
            raise SystemExit(f"the guard is not there, or not once: {self._mutant.guard!r}")
        changed = source.replace(self._mutant.guard, self._mutant.instead)
        exec(compile(changed, module.__spec__.origin, "exec"), module.__dict__)


def caught_by_model(mutant: Mutant) -> str:
    """What the model's checks say of the protocol as it is imported now; empty if nothing."""
    from interleavings import Violated
    from search import SYNCHRONOUS, WIDER, Found, explore, small_job, walk

    from rljob_core.errors import ProtocolViolation

    def walks(*seeds: int, slow: bool) -> None:
        for seed in seeds:
            walk(random.Random(seed), slow=f"g{seed % 4}.0" if slow else "")

    streaming = {"mode": "Streaming", "maxStaleness": 0}
    searches: list[Callable[[], Any]] = [
        lambda: walks(*([] if mutant.walk is None else [mutant.walk]), slow=mutant.slow),
        lambda: walks(*range(500), slow=False),
        lambda: walks(*range(600), slow=True),
        lambda: explore(small_job(steps=3), engines=2, deaths=0, change=SYNCHRONOUS),
        lambda: explore(small_job(steps=3, pipeline=streaming), engines=2, deaths=0, change=WIDER),
        lambda: explore(small_job(steps=1), engines=2, deaths=1),
        lambda: walks(*range(500, 2000), slow=False),
        lambda: explore(small_job(steps=2), engines=2, deaths=1, limit=6000),
    ]
    for search in searches:
        try:
            search()
        except (Found, Violated, ProtocolViolation) as error:
            return str(error).splitlines()[0]
    return ""


def caught_by_simulation(_: Mutant) -> str:
    """What the simulation of whole jobs says."""
    import logging

    from simulation import outcome

    logging.disable()
    for seed in range(SEEDS):
        error = outcome(seed)[1]
        if error:
            return f"seed {seed}: {error.splitlines()[0]}"
    return ""


def said_of(name: str, *, by: str) -> str:
    """What the checks, in a process of their own, say of a mutant.

    Raises:
        AssertionError: they find nothing, or it is no program.
    """
    command = [sys.executable, __file__, by, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (1, ""), f"{done.stdout}{done.stderr}"
    said = done.stdout.strip()
    assert not said.removeprefix("seed ").lstrip("0123456789: ").startswith(NO_PROGRAM), said
    return said


if __name__ == "__main__":
    by, name = sys.argv[1:]
    planted = MUTANTS[name]
    sys.meta_path.insert(0, _Mutating(planted))
    if by == "simulation":
        sys.path.insert(1, str(Path(__file__).parent.parent / "sim"))
    said = {"model": caught_by_model, "simulation": caught_by_simulation}[by](planted)
    sys.stdout.write(f"{said or 'nothing was noticed'}\n")
    raise SystemExit(1 if said else 0)
