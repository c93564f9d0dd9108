"""The processes that send a job's metrics to experiment trackers: a Deployment for each of `spec.trackers`.

Each has the credentials of its own tracker and may read the metrics, and nothing else of the job but its samples, if
the tracker gets any. One that fails is started again by Kubernetes and shown by the condition `TrackerDegraded`; the
job goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_core import worker_protocol
from rljob_core.spec import TrackerSpec
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.egress import tracker_egress
from rljob_operator.children.metadata import child_metadata, policy_manifest
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.worker_pod import GRACE_SECONDS, Patches, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

_KILL_SECONDS = 5
"""In which a kubelet ends a pod after its grace."""


def trackers(job: ResolvedJob) -> Iterator[Manifest]:
    """The Deployments of the job's trackers, and the NetworkPolicy of their pods; nothing if it has none."""
    if not job.spec.trackers:
        return
    yield _network_policy(job)
    for number, tracker in enumerate(job.spec.trackers):
        yield _deployment(job, tracker, f"spec.trackers[{number}]")


def roles(job: ResolvedJob) -> tuple[Role, ...]:
    """The roles of the job that are clients of its streams."""
    return tuple(role for role in names.WORKERS if role is not Role.TRACKER or job.spec.trackers)


def _deployment(job: ResolvedJob, tracker: TrackerSpec, path: str) -> Manifest:
    name, part = job.metadata.name, names.tracker_part(tracker.name)
    patches = Patches(path, role=_patch(job, tracker, part))
    child = names.child(name, Role.TRACKER, part)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(job.job, child, Role.TRACKER, part),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": names.identity(name, Role.TRACKER, part)},
            # Two at once would store points twice.
            "strategy": {"type": "Recreate"},
            "template": pod_template(job, Role.TRACKER, names.config_map(name), patches),
        },
    }


def _patch(job: ResolvedJob, tracker: TrackerSpec, part: str) -> Manifest:
    """What a tracker's pod has besides the template of all roles."""
    variables = {worker_protocol.TRACKER: tracker.name}
    if job.defaults.trackers_folder:
        variables[worker_protocol.TRACKER_FOLDER] = f"{job.defaults.trackers_folder}/{tracker.name}"
    else:
        # A drained node's pod still runs, for its grace, when its successor starts elsewhere.
        handover = GRACE_SECONDS[Role.TRACKER] + _KILL_SECONDS
        variables[worker_protocol.TRACKER_HANDOVER] = str(handover)
    claims = storage.claims(storage.texts(tracker.options))
    read = [claim for claim in job.samples_claims if tracker.samples and claim not in claims]
    container: Manifest = {
        "name": Role.TRACKER.value,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [
            *(storage.mount(claim, writable=True) for claim in claims),
            *(storage.mount(claim, writable=False) for claim in read),
        ],
    }
    if tracker.image is not None:
        container["image"] = tracker.image
    if tracker.credentials_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": tracker.credentials_secret}}]
    return {
        "metadata": {"labels": names.labels(job.metadata.name, Role.TRACKER, part)},
        "spec": {"containers": [container], "volumes": [storage.volume(claim) for claim in (*claims, *read)]},
    }


def _network_policy(job: ResolvedJob) -> Manifest:
    """Lets the trackers' pods, and no others of the job, reach the trackers' servers."""
    # Of no role, so that it is deleted only when the pods, which send the last lines in their grace, have ended.
    metadata = child_metadata(job.job, names.trackers(job.metadata.name), None)
    pods = {"matchLabels": names.identity(job.metadata.name, Role.TRACKER)}
    return policy_manifest(metadata, pods, ingress=None, egress=tracker_egress(job))
