"""A process of a scoring pool from outside: what it finds imported, how it is killed, and how it ended."""

from __future__ import annotations

import contextlib

import psutil

from rljob_core.words import exit_in_words, shell_code
from rljob_runtime.rewards.messages import ScoringSetup


def preloaded(setup: ScoringSetup) -> list[str]:
    """What the fork server imports: modules of the pool's processes, before any of them imports the job's functions."""
    generated = (setup.training.generated, setup.held_out.generated)
    modules = {
        "rljob_runtime.rewards.forkserver": True,
        "rljob_runtime.rewards.process": True,
        "rljob_runtime.data.gym": any(generated),
        "math_verify": "math_verify" in setup.functions,
    }
    return [module for module, wanted in modules.items() if wanted]


def kill(process: int) -> None:
    """Kill a process, and those that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process)
        for each in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def end_in_words(code: int | None) -> str:
    """How a process ended, by the exit code of `multiprocessing`: minus the number of the signal, if one ended it."""
    if code is None:
        return "its exit code is not known"
    return exit_in_words(shell_code(code))
