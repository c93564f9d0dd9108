"""The tracker `WandB`: a run of Weights & Biases, https://docs.wandb.ai/ref/python.

W&B's own step is a point's sequence, because it must grow from call to call, while evaluations end later than the steps
after them and a user may go back. The curves' x is `rljob/step`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import wandb

from rljob_core.ports import SampleTable, TrackedPoint, TrackedRun
from rljob_runtime.trackers.options import WandbOptions, folder_of
from rljob_runtime.trackers.points import STEP, STREAM, stored

_MAGIC, _HEADER_BYTES = b":W&B", 7
_BLOCK = 32 << 10
_RECORD = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbTracker:
    """A run of Weights & Biases, online or in files."""

    def __init__(self, run: TrackedRun, options: WandbOptions) -> None:
        mode = options.mode or ("offline" if os.environ.get("WANDB_MODE") == "offline" else "online")
        offline = mode == "offline"
        # Online, the files are those that are on their way to the server.
        given = options.directory or run.folder
        folder = Path(folder_of(run, options.directory) if offline or given else "/tmp")  # noqa: S108
        folder.mkdir(parents=True, exist_ok=True)
        self._position, self._stream = 0, 0
        if offline:
            rows = histories(folder, run.uid)
            found = ((int(row["_step"]), int(float(row.get(STREAM, 0)))) for row in rows)
            self._position, self._stream = max(found, default=(0, 0))
        self._logged: int | None = None
        self._tables: dict[str, wandb.Table] = {}
        self._run = wandb.init(
            id=run.uid,
            name=run.name,
            project=options.project,
            entity=options.entity,
            group=options.group,
            tags=options.tags or None,
            dir=str(folder),
            config={
                "rljob": {
                    "name": run.name,
                    "namespace": run.namespace,
                    "uid": run.uid,
                    "revision": run.revision,
                },
                "spec": dict(run.spec),
            },
            mode=mode,
            resume=None if offline else "allow",
            reinit="finish_previous",
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        if not offline and self._run.resumed:
            self._position = self._run.step - 1  # the server's: the step of the next call
            self._stream = int(self._run.summary.get(STREAM, 0))

    def position(self) -> int:
        """W&B's newest step: the server's, or that of the files."""
        return self._position

    def stream(self) -> int:
        """`rljob/stream` of that step."""
        return self._stream

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Log each point as W&B's step `sequence`."""
        for point in points:
            self._run.log({**stored(point), **self._tables}, step=point.sequence)
            self._logged, self._tables = point.sequence, {}

    def log_samples(self, table: SampleTable) -> None:
        """Log a table with the newest point: W&B's steps must grow."""
        found = wandb.Table(
            columns=["step", *table.columns],
            data=[[table.step, *row] for row in table.rows],
            allow_mixed_types=True,
        )
        if self._logged is None:  # another process has logged that point, and W&B has written it
            self._tables[f"samples/{table.kind}"] = found
        else:
            self._run.log({f"samples/{table.kind}": found}, step=self._logged)

    def close(self, outcome: str) -> None:
        """Send or write what was logged, and end the run and W&B's own process.

        `finish` alone does not wait until that process has closed the run's file.
        """
        code = 1 if outcome == "Failed" else 0
        self._run.finish(exit_code=code)
        wandb.teardown(exit_code=code)


def histories(folder: Path, run: str) -> Iterator[dict[str, str]]:
    """The logged values of a run, as JSON texts by name, of all files that it wrote offline, the oldest file first.

    The format is LevelDB's log, https://github.com/google/leveldb/blob/main/doc/log_format.md, behind a header of 7
    bytes: blocks of 32 KiB with records of wandb's protocol buffers. The end of a file may be missing.

    Args:
        folder: the one in which `wandb` has its folder `wandb`.
        run: id of the run.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted((folder / "wandb").glob(f"offline-run-*-{run}/run-{run}.wandb")):
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                found = record.history
                yield {
                    "_step": str(found.step.num),
                    **{item.key or "/".join(item.nested_key): item.value_json for item in found.item},
                }


def _records(data: bytes) -> Iterator[bytes]:
    """The whole records of a file's content, up to the first that is cut."""
    position, parts = _HEADER_BYTES, b""
    if not data.startswith(_MAGIC):
        return
    while position + _RECORD.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _RECORD.size:  # a block's end that is too short for a record is filled with zeros
            position += left
            continue
        _checksum, size, kind = _RECORD.unpack_from(data, position)
        position += _RECORD.size
        part = data[position : position + size]
        if kind == 0 or len(part) < size:
            return
        position += size
        parts = part if kind in {_FULL, _FIRST} else parts + part
        if kind in {_FULL, _LAST}:
            yield parts
