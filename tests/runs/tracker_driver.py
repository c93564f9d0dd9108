"""Sends recorded points to a real tracker, and reads back what it stored: run by the trackers' own Python.

`send NAME FOLDER FIRST LAST [crash|read]`: opens the run, and logs the points FIRST to LAST that it does not have, one
call for each; with `crash`, the process then ends by SIGKILL, with `read` it reads afterwards. `read NAME FOLDER`:
prints the stored rows as JSON, with the names and values that the tracker's own reader gives them.
`tables NAME FOLDER`: the same of tables of samples. `table NAME FOLDER`: logs a table
between points. `refuse Trackio FOLDER`: logs a table that its file does not take, and then points.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_core.ports import TrackedPoint, TrackedRun
from rljob_core.spec import TrackerSpec
from rljob_runtime.trackers import create_tracker

RUN = TrackedRun("uid-1", "job", "default", {"steps": 6, "rollout": {"pools": [{"name": "cpu"}]}}, "0123abc")
OPTIONS: dict[str, dict[str, Any]] = {"WandB": {"mode": "offline"}}
Row = dict[str, Any]
STREAM = (1 << 24) - 1
"""The largest that there is, which a float of 32 bits must hold."""


def recorded() -> list[TrackedPoint]:
    """Commits, an evaluation that ends late, a rollback, and the end."""
    commits = [TrackedPoint(n, n, "commit", {"train/loss": 1 / n, "job/engines": 2.0}) for n in range(1, 6)]
    evaluation = TrackedPoint(6, 3, "evaluation", {"evaluation/heldout_sampled": 0.5})
    back = TrackedPoint(7, 4, "rollback")
    again = [TrackedPoint(n + 3, n, "commit", {"train/loss": 2 / n, "job/engines": 2.0}) for n in (5, 6)]
    found = [*commits, evaluation, back, *again, TrackedPoint(10, 6, "end", outcome="Succeeded")]
    return [replace(point, stream=STREAM) for point in found]


def send(name: str, folder: str, first: int, last: int, *, crash: bool) -> None:
    run = TrackedRun(RUN.uid, RUN.name, RUN.namespace, RUN.spec, RUN.revision, folder)
    tracker = create_tracker(
        TrackerSpec(name=name, options=OPTIONS.get(name, {})), run, path="spec.trackers[0]"
    )
    position, stream = tracker.position(), tracker.stream()  # type: ignore[attr-defined]
    points = [point for point in recorded() if max(first, position + 1) <= point.sequence <= last]
    for point in points:
        tracker.log([point])
    if crash:
        os.kill(os.getpid(), signal.SIGKILL)
    tracker.close(points[-1].outcome if points else "")
    sys.stdout.write(f"POSITION{position}\nSTREAM{stream}\n")


def store_table(name: str, folder: str) -> None:
    from rljob_core.ports import SampleTable

    run = TrackedRun(RUN.uid, RUN.name, RUN.namespace, RUN.spec, RUN.revision, folder)
    tracker = create_tracker(TrackerSpec(name=name), run, path="spec.trackers[0]")
    tracker.log(recorded()[:1])
    tracker.log_samples(SampleTable(1, "evaluation", ("prompt",), (("1+1",),)))  # type: ignore[attr-defined]
    tracker.log(recorded()[1:2])
    tracker.close("")


def refuse(folder: str) -> None:
    import sqlite3

    from rljob_core.errors import StorageRefused
    from rljob_core.ports import SampleTable
    from rljob_runtime.trackers import trackio_tracker

    run = TrackedRun(RUN.uid, RUN.name, RUN.namespace, RUN.spec, RUN.revision, folder)
    tracker = create_tracker(TrackerSpec(name="Trackio"), run, path="spec.trackers[0]")
    points = recorded()
    tracker.log(points[:1])
    database = sqlite3.connect(Path(folder) / "rljob.db", isolation_level=None)
    database.execute("CREATE TRIGGER full BEFORE INSERT ON metrics BEGIN SELECT RAISE(ABORT, 'full'); END")
    patience, trackio_tracker._STORED_SECONDS = trackio_tracker._STORED_SECONDS, 6.0
    try:
        tracker.log_samples(SampleTable(1, "evaluation", ("prompt",), (("1+1",),)))  # type: ignore[attr-defined]
    except StorageRefused:
        database.execute("DROP TRIGGER full")
        trackio_tracker._STORED_SECONDS = patience
        tracker.log(points[1:3])
    tracker.close("")


def read(name: str, folder: Path) -> list[Row]:
    readers = {"WandB": _wandb, "MLflow": _mlflow, "TensorBoard": _tensorboard, "Trackio": _trackio}
    return list(readers[name](folder))


def _wandb(folder: Path) -> Iterator[Row]:
    from rljob_runtime.trackers.wandb_tracker import histories

    (file,) = {path.name for path in folder.glob("wandb/offline-run-*/run-*.wandb")}
    for row in histories(folder, file.removeprefix("run-").removesuffix(".wandb")):
        yield {name: json.loads(value) for name, value in row.items()}


def _mlflow(folder: Path) -> Iterator[Row]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name != "Default")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["spec.rollout.pools.0.name"] == "cpu"
    rows: dict[tuple[int, int], list[Row]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            rows.setdefault((metric.timestamp, metric.step), []).append({name: metric.value})
    for parts in rows.values():
        names = [name for part in parts for name in part]
        assert len(names) == len(set(names)), names
        yield {name: value for part in parts for name, value in part.items()}


def _tensorboard(folder: Path) -> Iterator[Row]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for file in sorted(folder.glob("*/events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            values = {
                value.tag: value.simple_value for value in event.summary.value if not value.HasField("tensor")
            }
            if values:
                yield {**values, "_step": event.step}


def _trackio(folder: Path) -> Iterator[Row]:
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.api import Api
    from trackio.sqlite_storage import SQLiteStorage

    (project,) = SQLiteStorage.get_projects()
    (run,) = Api().runs(project)
    yield from SQLiteStorage.get_logs(project, run.name)


def tables(name: str, folder: Path) -> Iterator[tuple[str, int, int]]:
    """The stored tables of samples: kind, step, and rows, as the tracker's own files have them."""
    if name == "MLflow":
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
        (experiment,) = (e for e in client.search_experiments() if e.name != "Default")
        (run,) = client.search_runs([experiment.experiment_id])
        named = [entry["path"] for entry in json.loads(run.data.tags.get("mlflow.loggedArtifacts", "[]"))]
        for file in client.list_artifacts(run.info.run_id, "samples"):
            assert file.path in named
            content = json.loads(Path(client.download_artifacts(run.info.run_id, file.path)).read_text())
            kind, step = Path(file.path).stem.split("-")
            assert all(len(row) == len(content["columns"]) for row in content["data"])
            yield kind, int(step), len(content["data"])
        return
    if name == "TensorBoard":
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        for path in sorted(folder.glob("*/samples/events.out.tfevents.*")):
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.tag.startswith("samples/"):
                        (text,) = value.tensor.string_val
                        yield value.tag.removeprefix("samples/"), event.step, text.decode().count("\n") - 1
        return
    for row in read(name, folder):
        for kind in ("evaluation", "training"):
            if name == "WandB" and (place := row.get(f"samples/{kind}/path")):  # its reader joins nested keys
                (path,) = folder.glob(f"wandb/offline-run-*/files/{place}")
                content = json.loads(path.read_text())
                assert len(content["data"]) == row[f"samples/{kind}/nrows"]
                yield kind, content["data"][0][0], len(content["data"])
            elif found := row.get(f"samples/{kind}"):
                assert found["_type"] == "trackio.table"
                yield kind, row["step"], len(found["_value"])


def main() -> None:
    command, name, folder, *rest = sys.argv[1:]
    if command == "tables":
        sys.stdout.write(f"TABLES{json.dumps(list(tables(name, Path(folder))))}\n")
    if command == "table":
        store_table(name, folder)
    if command == "refuse":
        refuse(folder)
    if command == "send":
        send(name, folder, int(rest[0]), int(rest[1]), crash="crash" in rest)
    if command == "read" or "read" in rest:
        found = [
            row for row in read(name, Path(folder)) if "rljob/sequence" in row
        ]  # a table may have a row alone
        rows = sorted(found, key=lambda row: row["rljob/sequence"])
        sys.stdout.write(f"ROWS{json.dumps(rows, default=str)}\n")


if __name__ == "__main__":
    main()
