"""A worker's process: `python -m rljob_runtime.main ROLE`.

The process of the rollout role only watches another one, which holds the engine: a prompt that makes the engine crash
would otherwise end the only process that could report it. `rljob_runtime.worker` runs a role; it is imported late,
because a process that only watches needs none of it.

With `fork-server` as its role, it runs roles in processes that it forks (`rljob_runtime.process.fork_server`).
"""

from __future__ import annotations

import gc
import os
import secrets
import sys
from functools import partial

from rljob_core import worker_protocol
from rljob_runtime.process.import_path import put_users_modules_last
from rljob_runtime.process.leave import leave
from rljob_runtime.process.lifeline import die_with_parent

# Importing torch and transformers makes millions of objects, all of which live on. Python's default, a collection for
# every 700 new objects, makes each start of a role a tenth slower.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main(arguments: list[str] | None = None) -> int:
    """Run the role named on the command line, the rollout role in a process of its own; returns the exit code."""
    die_with_parent()
    put_users_modules_last()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    (name,) = sys.argv[1:] if arguments is None else arguments
    if name == worker_protocol.FORK_SERVER:
        from rljob_runtime.preload import modules
        from rljob_runtime.process.fork_server import serve

        request = serve(modules)
        if request is None:
            return 0
        die_with_parent()
        leave(_run(request.role, forked=True))
    return _run(name, forked=False)


def _run(name: str, *, forked: bool) -> int:
    python = os.environ.pop(worker_protocol.TRACKER_PYTHON, None)
    if name == worker_protocol.TRACKER_ROLE and python:
        return _elsewhere(python, name)
    if name == "rollout" and worker_protocol.NONCE not in os.environ:
        return _watched(name, forked=forked)
    from rljob_runtime.worker import run

    return run(name)


def _elsewhere(python: str, name: str) -> int:
    """Become a process of another Python, which runs the role; returns an exit code if that cannot be."""
    try:
        os.execv(python, [python, "-m", worker_protocol.MODULE, name])  # noqa: S606
    except OSError as error:
        from rljob_core.failures import Failure, Reason
        from rljob_runtime.process.termination import terminate

        message = f"{worker_protocol.TRACKER_PYTHON}: {python} does not start: {error.strerror}"
        return terminate(Failure(Reason.INVALID_SPEC, message))


def _watched(name: str, *, forked: bool) -> int:
    """Run the role in another process, and report its death to the coordinator.

    Args:
        forked: this process was forked, with what the role needs; the other one is forked from it.
    """
    from rljob_runtime.process.watcher import forked_child, program, watch

    nonce = secrets.token_hex(4)
    start = (
        forked_child(partial(main, [name]))
        if forked
        else program([sys.executable, "-m", worker_protocol.MODULE, name])
    )
    end = watch(start, {worker_protocol.NONCE: nonce})
    if end.crashed:
        from rljob_runtime.roles.rollout.death_report import report_death

        report_death(nonce, end)
    return end.code


if __name__ == "__main__":
    sys.exit(main())
