"""Runs the checks on mutants: the protocol with one of its guards removed, which the checks must detect.

    python tests/core/mutants.py model NAME       # exits with 1 and prints the error if a check detects it, else with 0
    python tests/core/mutants.py simulation NAME  # the same with whole simulated jobs

A mutant changes the source of one module while the module is imported; the file is not changed.
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
"""Exceptions that show that a mutant is not a valid program."""
SEEDS = 600
"""Number of simulated jobs, one of which must detect a mutant."""


class _Mutating(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module without the guard that a mutant removes."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        found = PathFinder.find_spec(name, path, target)
        assert found is not None, f"there is no module {name}"
        found.loader = self
        return found

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        assert module.__spec__.origin is not None
        source = Path(module.__spec__.origin).read_text(encoding="utf-8")
        if source.count(self._mutant.guard) != 1:
            raise SystemExit(f"the source does not contain the guard exactly once: {self._mutant.guard!r}")
        changed = source.replace(self._mutant.guard, self._mutant.instead)
        exec(compile(changed, module.__spec__.origin, "exec"), module.__dict__)


def caught_by_model(mutant: Mutant) -> str:
    """Run the model's checks on the imported protocol; return the first error, or "" if there is none."""
    from exploration import SYNCHRONOUS, WIDER, Found, explore, small_job, walk
    from interleavings import Violated

    from rljob_core.errors import ProtocolViolation

    def walks(*seeds: int, slow: bool = False, poison: bool = False, sites: bool = False) -> None:
        for seed in seeds:
            chance, slowly = random.Random(seed), f"g{seed % 4}.0" if slow else ""
            walk(chance, slow=slowly, poison=f"g{seed % 3}" if poison else "", sites=sites)

    streaming = {"mode": "Streaming", "maxStaleness": 0}

    def bounded(seeds: int) -> None:
        from bounded_store import walk, walk_without_room

        for seed in range(seeds):
            walk(seed, steady=seed % 2 == 0)
            if seed < 5:
                walk_without_room(seed)

    searches: list[Callable[[], Any]] = [
        lambda: bounded(300 if mutant.store else 0),
        lambda: walks(
            *([] if mutant.walk is None else [mutant.walk]),
            slow=mutant.slow,
            poison=mutant.poison,
            sites=mutant.sites,
        ),
        lambda: walks(*range(600 if mutant.poison else 0), poison=True),
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


def caught_by_simulation(mutant: Mutant) -> str:
    """Simulate whole jobs with the imported protocol; return the first error, or "" if there is none."""
    import logging

    from simulation import any_job, any_job_of_episodes, any_job_over_sites, outcome

    logging.disable()
    draw = any_job_over_sites if mutant.sites else any_job_of_episodes if mutant.episodes else any_job
    for seed in (*(() if mutant.seed is None else (mutant.seed,)), *range(SEEDS)):
        error = outcome(seed, draw=draw)[1]
        if error:
            return f"seed {seed}: {error.splitlines()[0]}"
    return ""


def detection_of(name: str, *, by: str) -> str:
    """Run the checks on a mutant in a new process and return the error with which they detect it.

    Raises:
        AssertionError: the checks do not detect the mutant, or the mutant is not a valid program.
    """
    command = [sys.executable, __file__, by, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (1, ""), f"{done.stdout}{done.stderr}"
    error = done.stdout.strip()
    assert not error.removeprefix("seed ").lstrip("0123456789: ").startswith(NO_PROGRAM), error
    return error


if __name__ == "__main__":
    by, name = sys.argv[1:]
    mutant = MUTANTS[name]
    sys.meta_path.insert(0, _Mutating(mutant))
    importlib.util.find_spec(mutant.module)  # fails if there is none
    if by == "simulation":
        sys.path[1:1] = [str(Path(__file__).parents[1] / "sim"), str(Path(__file__).parents[2])]
    error = {"model": caught_by_model, "simulation": caught_by_simulation}[by](mutant)
    sys.stdout.write(f"{error or 'no check failed'}\n")
    raise SystemExit(1 if error else 0)
