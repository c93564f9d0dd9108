"""The protocol with one of its guards turned off, for the checks to find out.

    python tests/core/mutants.py NAME      # exits 1 and says how, once a check has caught it; 0 if none does
    python tests/core/mutants.py           # the same of the protocol as it is

A mutant is a change of one module's source, made as it is imported; nothing on the disk changes.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard less: in `module`, `guard` becomes `instead`."""

    module: str
    guard: str
    instead: str


MUTANTS: dict[str, Mutant] = {
    "a displaced group may land past its bound": Mutant(
        "rljob_core.dispatch", "if buffers.buffers[source].admits(base)), None", "), None"
    ),
    "a finished group may move past its bound": Mutant(
        "rljob_core.dispatch",
        "if entry.state is EntryState.OCCUPIED and current.admits(entry.base)",
        "if entry.state is EntryState.OCCUPIED",
    ),
    "results of an old attempt are taken": Mutant(
        "rljob_core.planner.results",
        "if sibling is None or sibling.attempt != summary.attempt:\n        desk.payloads.release([key])",
        "if sibling is None:\n        desk.payloads.release([key])",
    ),
    "a payload that comes twice is taken twice": Mutant(
        "rljob_core.planner.results",
        "    if sibling.state is not State.GENERATING:\n        return\n    desk.free_slot",
        "    desk.free_slot",
    ),
    "a zombie trainer's step is committed": Mutant(
        "rljob_core.planner.training",
        "        or (proposal.attempt, proposal.epoch) != (trainer.attempt, trainer.epoch)\n",
        "",
    ),
    "an old gang is taken on again": Mutant(
        "rljob_core.planner.training",
        "    if trainer is not None and event.attempt < trainer.attempt:",
        "    if False:",
    ),
    "a gang is told to start twice": Mutant(
        "rljob_core.planner.training",
        "if trainer is not None and event.attempt == trainer.attempt and event.resume < desk.resumes:",
        "if False:",
    ),
    "what was in training stays there when the gang dies": Mutant(
        "rljob_core.job_state", "for group in self.in_training():", "for group in ():"
    ),
    "records of a fenced coordinator count": Mutant(
        "rljob_core.job_state", "if batch.writer == self.writer:", "if True:"
    ),
    "open buffers take a new bound": Mutant(
        "rljob_core.planner",
        'self.spec = self.spec.model_copy(update={"pipeline": observation.pipeline})',
        'self.spec = self.spec.model_copy(update={"pipeline": observation.pipeline})\n'
        "                    for buffer in self.state.buffers.buffers.values():\n"
        "                        buffer.max_staleness = observation.pipeline.bound",
    ),
    "a buffer opens before its weights can exist": Mutant(
        "rljob_core.staleness",
        "return range(self.next_step, min(steps, self.version + max_staleness + 1))",
        "return range(self.next_step, min(steps, self.version + max_staleness + 2))",
    ),
    "a reservation asks for no version": Mutant(
        "rljob_core.planner.dispatching",
        "min_version = max(buffer.min_version, engine.version)",
        "min_version = 0",
    ),
    "engines start below the minVersion": Mutant("interleavings", "if w.min_version <= engine.version]", "]"),
    "payloads are deleted before they are trained": Mutant(
        "rljob_core.planner.results",
        "    desk.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))\n",
        "    desk.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))\n"
        "    desk.let_go(sibling)\n",
    ),
    "a coordinator acts before its records are stored": Mutant(
        "interleavings",
        "        if decision.records:\n            writer",
        "        if dies:\n"
        "            for action in decision.actions:\n"
        "                self._act(action)\n"
        "            return\n"
        "        if decision.records:\n            writer",
    ),
    "a lost engine's work is forgotten": Mutant(
        "rljob_core.planner.engines", "desk.reset(sibling, reason, failure=False)\n            known", "known"
    ),
    "work that was on its way is not sent again": Mutant(
        "rljob_core.planner", "        dispatching.repeat(self)\n", ""
    ),
}


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


def caught() -> str:
    """What the checks say of the protocol as it is imported now; empty if nothing."""
    from interleavings import Violated
    from search import SYNCHRONOUS, WIDER, Found, explore, small_job, walk

    from rljob_core.errors import ProtocolViolation

    streaming = {"mode": "Streaming", "maxStaleness": 0}
    searches: list[Callable[[], Any]] = [
        lambda: [walk(random.Random(seed)) for seed in range(1500)],
        lambda: explore(small_job(steps=2), engines=1, deaths=1, server_fails=True),
        lambda: explore(small_job(steps=1), engines=2, deaths=1),
        lambda: explore(small_job(steps=3), engines=2, deaths=0, change=SYNCHRONOUS),
        lambda: explore(small_job(steps=3, pipeline=streaming), engines=2, deaths=0, change=WIDER),
        lambda: explore(small_job(steps=2), engines=2, deaths=1, limit=6000),
    ]
    for search in searches:
        try:
            search()
        except (Found, Violated, ProtocolViolation) as error:
            return str(error).splitlines()[0]
    return ""


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.meta_path.insert(0, _Mutating(MUTANTS[name]))
    said = caught()
    sys.stdout.write(f"{said or 'nothing was noticed'}\n")
    raise SystemExit(1 if said else 0)
