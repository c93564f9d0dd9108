"""The manifest of a Kubernetes Event about an RLJob."""

from __future__ import annotations

from datetime import datetime

from rljob_core.spec import API_VERSION, RLJob
from rljob_operator.cluster.port import Event, Manifest

_COMPONENT = "rljob-operator"


def event_manifest(job: RLJob, event: Event, now: datetime) -> Manifest:
    """The Event, as it is created at the time `now`, which is in UTC."""
    time = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    message = f"{event.about}: {event.message}" if event.about else event.message
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{job.metadata.name}.", "namespace": job.metadata.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "name": job.metadata.name,
            "namespace": job.metadata.namespace,
            "uid": job.metadata.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": message[:1024],
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
