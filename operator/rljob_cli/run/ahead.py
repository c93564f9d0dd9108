"""Imports what a run's processes will need beside the checks of its job: torch takes longer than all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rljob_operator.cluster.local.fork_server import ForkServerProcess, cluster_environment

if TYPE_CHECKING:
    from rljob_core.spec import RLJob

OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""Models are folders: nothing of a run asks a hub."""

_started: list[ForkServerProcess] = []
"""The fork server that the command's entry has started, until a run takes it."""


def start_fork_server() -> None:
    """Start the process that will import what a run's roles need, before it is known what that is.

    It ends with this process, whether a run takes it or not. On systems where roles are not forked, nothing starts, and
    neither where no process can: the checks of the run say why.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            _started.append(ForkServerProcess(cluster_environment({**os.environ, **OFFLINE})))


@contextmanager
def importing_ahead(job: RLJob, variables: Mapping[str, str]) -> Iterator[ForkServerProcess | None]:
    """Yield the fork server of a run, which imports what the job's roles will; it ends with the context.

    Yields None on systems where roles are not forked.

    Args:
        job: the job, not yet checked.
        variables: of the run's processes, besides those of this one.
    """
    if not _started:
        start_fork_server()
    if not _started:
        yield None
        return
    server = _started.pop()
    try:
        server.add_variables(variables)
        from rljob_runtime.preload import modules_of_job  # meanwhile that process starts

        server.import_ahead(modules_of_job(job.spec))
        yield server
    finally:
        server.end()
