"""Keeps what a pod's engines have shown of their pauses, for the process that follows when one of them has died.

The file is beside the one that says that the worker is ready: on a volume that lives as long as the pod, so it outlives
each of its processes, and tells nothing to a pod on another machine.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.hang_limit import KnownPauses
from rljob_runtime.engines.registry import find_engine

PAUSES = "pauses.json"
"""The file's name."""

log = logging.getLogger(__name__)


class PausesFile:
    """The file; nothing is kept without one.

    Args:
        path: of it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._written: KnownPauses | None = None

    @classmethod
    def beside(cls, ready_file: str | None) -> PausesFile:
        """The one of the pod whose worker is ready once `ready_file` exists."""
        return cls(Path(ready_file).with_name(PAUSES) if ready_file else None)

    def read(self) -> KnownPauses | None:
        """What earlier processes of the pod have left; None if that is nothing, or nothing that can be read."""
        if self._path is None:
            return None
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads(self._path.read_bytes())
            return KnownPauses(**{name: int(value) for name, value in found.items()})
        return None

    def write(self, known: KnownPauses | None) -> None:
        """Leave this for the next process; a disk that takes nothing more costs no more than what it would know."""
        if self._path is None or known is None or known == self._written:
            return
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(asdict(known)))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("%s: %s", self._path, error)
        self._written = known


def pauses_file(engine: str) -> PausesFile | None:
    """The file of this worker's pod; None if the pauses of such an engine say nothing about later ones.

    Args:
        engine: `spec.rollout.engine.name`.
    """
    if not find_engine(engine).is_paced:
        return None
    return PausesFile.beside(os.environ.get(worker_protocol.READY_FILE))
