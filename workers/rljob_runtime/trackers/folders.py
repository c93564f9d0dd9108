"""Where a tracker writes files."""

from __future__ import annotations

from rljob_core.errors import SpecError
from rljob_core.ports import TrackedRun


def folder_of(run: TrackedRun, directory: str | None) -> str:
    """The folder of a tracker's files: the one that its options name, or the run's.

    Raises:
        SpecError: neither names one.
    """
    if directory is None and not run.folder:
        raise SpecError(
            "options.directory",
            "is needed on a cluster: write a folder that lasts, such as pvc://claim/folder",
        )
    return directory or run.folder
