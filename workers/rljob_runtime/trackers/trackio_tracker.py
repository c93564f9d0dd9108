"""The tracker `Trackio`: a project in Trackio's own SQLite file, https://huggingface.co/docs/trackio.

Trackio stores a batch of points as a whole. So `rljob/sequence` in the rows says which points the run has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rljob_core.errors import StorageRefused
from rljob_core.ports import SampleTable, TrackedPoint, TrackedRun
from rljob_runtime.trackers.options import TrackioOptions, folder_of
from rljob_runtime.trackers.points import SEQUENCE, STREAM, stored

_STORED_SECONDS = 30.0
_LOOK_SECONDS = 0.1


class TrackioTracker:
    """A run of Trackio, in files that `trackio show` and `trackio sync` read."""

    def __init__(self, run: TrackedRun, options: TrackioOptions) -> None:
        folder = Path(folder_of(run, options.directory)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(folder)  # Trackio reads it when it is imported
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        self._storage = SQLiteStorage
        self._table = trackio.Table
        self._project, self._name = options.project, f"{run.name}-{run.uid}"
        self._run = trackio.init(
            project=self._project,
            name=self._name,
            config={"namespace": run.namespace, "revision": run.revision, "spec": dict(run.spec)},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def position(self) -> int:
        """The greatest value of `rljob/sequence` in the rows."""
        return self._newest[0]

    def stream(self) -> int:
        """`rljob/stream` of that row."""
        return self._newest[1]

    @cached_property
    def _newest(self) -> tuple[int, int]:
        rows = self._storage.get_logs(self._project, self._name, max_points=None)
        return max(((int(row.get(SEQUENCE, 0)), int(row.get(STREAM, 0))) for row in rows), default=(0, 0))

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Log each point at its own step, and wait until they are in the file: Trackio drops what it cannot write.

        Raises:
            StorageRefused: they are not in the file in time.
        """
        before = self._rows()
        for point in points:
            self._run.log(stored(point), step=point.step)
        self._wait_for_rows(before + len(points))

    def log_samples(self, table: SampleTable) -> None:
        """Log a table at its step, and wait until it is in the file.

        Raises:
            StorageRefused: it is not in the file in time.
        """
        found = self._table(columns=list(table.columns), data=[list(row) for row in table.rows])
        before = self._rows()
        self._run.log({f"samples/{table.kind}": found}, step=table.step)
        self._wait_for_rows(before + 1)

    def _rows(self) -> int:
        """Those that are in the file. Each call counts them first: what an earlier one gave up on may be missing."""
        return int(self._storage.get_log_count(self._project, self._name))

    def _wait_for_rows(self, count: int) -> None:
        until = time.monotonic() + _STORED_SECONDS
        while self._rows() < count:
            if time.monotonic() > until:
                raise StorageRefused(
                    "Trackio did not write the points to its file: see the log for its warning"
                )
            time.sleep(_LOOK_SECONDS)

    def close(self, outcome: str) -> None:  # noqa: ARG002  the protocol's
        """Write what was logged, and end the run."""
        self._run.finish()
