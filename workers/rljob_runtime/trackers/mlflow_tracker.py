"""The tracker `MLflow`: a run on an MLflow server or in an SQLite file, https://mlflow.org/docs/latest/ml/tracking.

A point is one batch, which MLflow stores as a whole. So the metric `rljob/sequence` says which points the run has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rljob_core.ports import SampleTable, TrackedPoint, TrackedRun
from rljob_runtime.trackers.options import MlflowOptions, folder_of
from rljob_runtime.trackers.points import SEQUENCE, STREAM, stored

_UID = "rljob.uid"
_TABLES, _MOST_TABLES = "mlflow.loggedArtifacts", 50
"""The tag by which MLflow's page finds tables, and how many of them it names: a tag has 5,000 characters at most."""
_PARAMS, _VALUE = 100, 500
"""Parameters of a batch, and characters of a parameter, that every server of MLflow takes."""


class MlflowTracker:
    """A run of MLflow."""

    def __init__(self, run: TrackedRun, options: MlflowOptions) -> None:
        uri = options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = None
        if not uri:
            folder = Path(folder_of(run, options.directory)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._experiment(options.experiment, artifacts)
        self._id = self._continued(experiment, run) or self._created(experiment, run)

    def position(self) -> int:
        """The greatest value of the metric `rljob/sequence`."""
        history = self._client.get_metric_history(self._id, SEQUENCE)
        return int(max((metric.value for metric in history), default=0))

    def stream(self) -> int:
        """The newest value of the metric `rljob/stream`."""
        return int(self._client.get_run(self._id).data.metrics.get(STREAM, 0))

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Log each point as a batch at its own step; what has no values becomes tags."""
        for point in points:
            now = int(time.time() * 1000)
            metrics = [Metric(name, value, now, point.step) for name, value in stored(point).items()]
            tags = [RunTag("rljob.outcome", point.outcome), RunTag("rljob.message", point.message[:_VALUE])]
            self._client.log_batch(self._id, metrics=metrics, tags=tags if point.outcome else [])

    def log_samples(self, table: SampleTable) -> None:
        """Store a table as MLflow stores its own, a file of the run's artifacts, which replaces one of that name."""
        file = f"samples/{table.kind}-{table.step:06}.json"
        self._client.log_dict(
            self._id, {"columns": list(table.columns), "data": [list(row) for row in table.rows]}, file
        )
        known = json.loads(self._client.get_run(self._id).data.tags.get(_TABLES, "[]"))
        found = [entry for entry in known if entry.get("path") != file]
        self._client.set_tag(
            self._id, _TABLES, json.dumps([*found, {"path": file, "type": "table"}][-_MOST_TABLES:])
        )

    def close(self, outcome: str) -> None:
        """End the run as finished, failed, or killed if it is to be continued."""
        status = {"Succeeded": "FINISHED", "Failed": "FAILED"}.get(outcome, "KILLED")
        self._client.set_terminated(self._id, status)

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:  # another job has just created it
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _continued(self, experiment: str, run: TrackedRun) -> str | None:
        found: Sequence[Run] = self._client.search_runs(
            [experiment], f"tags.`{_UID}` = '{run.uid}'", max_results=1
        )
        if not found:
            return None
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return str(found[0].info.run_id)

    def _created(self, experiment: str, run: TrackedRun) -> str:
        tags = {"rljob.namespace": run.namespace, "mlflow.source.git.commit": run.revision}
        made = self._client.create_run(
            experiment, run_name=run.name, tags={k: v for k, v in tags.items() if v}
        )
        identity = str(made.info.run_id)
        params = [Param(name, value[:_VALUE]) for name, value in _flat("spec", run.spec) if value]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(identity, params=params[start : start + _PARAMS])
        # Last, so that a run that was created in part is not continued, and its parameters are complete.
        self._client.set_tag(identity, _UID, run.uid)
        return identity


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The values of a spec by their paths, with characters that MLflow admits: `spec.rollout.pools.0.name`."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(
                f"{name}.{''.join(c if c.isalnum() or c in '_-. /' else '_' for c in str(key))}", part
            )
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _flat(f"{name}.{number}", part)
    elif value is not None:
        yield name[-250:], str(value)
