"""The files of a local cluster that other programs read: `status.json` and `pids.json`.

Each file is replaced atomically: a reader sees the old text or the new text. The status survives a crash of the
machine, because a later run continues with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_operator.cluster.local.workloads import Slot
from rljob_operator.names import LABEL_ATTEMPT, LABEL_POOL, LABEL_ROLE


class LocalFiles:
    """The two files; methods raise `OSError` if the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._status = folder / "status.json"
        self._pids = folder / "pids.json"
        self._pids_written: dict[str, Any] | None = None

    def read_status(self, job: RLJob) -> RLJobStatus:
        """The stored status of the job with this uid; an empty one if there is none."""
        if self._status.exists():
            stored = json.loads(self._status.read_text(encoding="utf-8"))
            if stored["metadata"] == _identity(job):
                return RLJobStatus.model_validate_json(json.dumps(stored["status"]))
        return RLJobStatus()

    def write_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Store a job's status."""
        stored = {
            "metadata": _identity(job),
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        replace_text(self._status, json.dumps(stored, indent=2), durable=True)

    def write_pids(self, slots: Iterable[Slot]) -> None:
        """Store the process ids of the pods that run now: `{pod: {role, pool, attempt, pid, restarts}}`."""
        running = {}
        for slot in slots:
            if slot.pod.pid is not None:
                labels = slot.template["metadata"].get("labels", {})
                running[slot.pod.name] = {
                    "role": labels.get(LABEL_ROLE),
                    "pool": labels.get(LABEL_POOL),
                    "attempt": labels.get(LABEL_ATTEMPT),
                    "pid": slot.pod.pid,
                    "restarts": max(slot.pod.starts - 1, 0),
                }
        if running != self._pids_written:
            replace_text(self._pids, json.dumps(running, indent=2))
            self._pids_written = running


def _identity(job: RLJob) -> dict[str, str | None]:
    return {"namespace": job.metadata.namespace, "name": job.metadata.name, "uid": job.metadata.uid}
