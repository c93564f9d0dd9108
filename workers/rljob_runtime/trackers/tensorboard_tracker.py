"""The tracker `TensorBoard`: event files, https://www.tensorflow.org/tensorboard.

A point is one event, with a checksum of its own. Each start of the tracker writes another file into the same folder,
as TensorBoard expects it; `rljob/sequence` in the events says which points the files have. Tables of samples, which are
a thousand times as large, are in a folder below, so that a start reads the points alone. Not beside them: of two files
in one folder that both grow, TensorBoard reads the later one.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rljob_core.ports import SampleTable, TrackedPoint, TrackedRun
from rljob_runtime.trackers.options import TensorboardOptions, folder_of
from rljob_runtime.trackers.points import SEQUENCE, STREAM, stored

_TABLES = "samples"
"""The folder of files with tables, which is a run of its own to TensorBoard."""


class TensorboardTracker:
    """A folder of event files."""

    def __init__(self, run: TrackedRun, options: TensorboardOptions) -> None:
        folder = Path(folder_of(run, options.directory)) / f"{run.name}-{run.uid}"
        folder.mkdir(parents=True, exist_ok=True)
        self._position, self._stream = max(_sequences(folder), default=(0, 0))
        self._folder = folder
        self._writer = EventFileWriter(str(folder))
        self._tables: EventFileWriter | None = None
        if not self._position:
            about = {"revision": run.revision, "namespace": run.namespace, "spec": dict(run.spec)}
            self._write(
                0, Summary(value=[_text("rljob/manifest", f"```\n{json.dumps(about, indent=1)}\n```")])
            )

    def position(self) -> int:
        """The greatest value of `rljob/sequence` in the files."""
        return self._position

    def stream(self) -> int:
        """`rljob/stream` of that event."""
        return self._stream

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Write an event for each point; a rollback hides the curves after its step."""
        for point in points:
            if point.kind == "rollback":
                start = SessionLog(status=SessionLog.START)
                self._writer.add_event(Event(wall_time=time.time(), step=point.step + 1, session_log=start))
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in stored(point).items()]
            self._write(point.step, Summary(value=scalars))
        self._writer.flush()

    def log_samples(self, table: SampleTable) -> None:
        """Write a table as text, which TensorBoard renders as Markdown."""
        lines = [_cells(table.columns), _cells(["---"] * len(table.columns)), *map(_cells, table.rows)]
        if self._tables is None:
            self._tables = EventFileWriter(str(self._folder / _TABLES))
        summary = Summary(value=[_text(f"samples/{table.kind}", "\n".join(lines))])
        self._tables.add_event(Event(wall_time=time.time(), step=table.step, summary=summary))
        self._tables.flush()

    def close(self, outcome: str) -> None:  # noqa: ARG002  the protocol's
        """Write what was logged."""
        self._writer.close()
        if self._tables is not None:
            self._tables.close()

    def _write(self, step: int, summary: Summary) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _cells(values: Sequence[object]) -> str:
    """A line of a table; what would end a cell or begin an element of HTML is escaped."""
    texts = ("" if value is None else html.escape(str(value), quote=False) for value in values)
    return f"| {' | '.join(text.replace('|', '&#124;').replace(chr(10), '<br>') for text in texts)} |"


def _text(tag: str, markdown: str) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
    return Summary.Value(tag=tag, metadata=create_summary_metadata(tag, ""), tensor=tensor)


def _sequences(folder: Path) -> Iterator[tuple[int, int]]:
    """Sequence and stream of all whole events; a crash may have cut the last one of a file."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            found = {value.tag: value.simple_value for value in event.summary.value}
            if SEQUENCE in found:
                yield int(found[SEQUENCE]), int(found.get(STREAM, 0))
