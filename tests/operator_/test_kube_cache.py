"""The operator decides from cached pods as from whole ones."""

from __future__ import annotations

from datetime import UTC, datetime

from rljob_core import worker_protocol
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.pods import read_pod
from rljob_operator.names import LABEL_JOB, LABEL_ROLE, Role


def test_a_cached_pod_is_read_as_the_whole_one() -> None:
    fetch = {"name": worker_protocol.FETCH_MODEL, "image": "any"}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "default",
            "name": "j-rollout-a-0",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {LABEL_JOB: "j", LABEL_ROLE: Role.ROLLOUT.value},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}],
            "managedFields": [{"manager": "any"}],
        },
        "spec": {
            "nodeName": "n",
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "initContainers": [fetch],
            "containers": [{"name": "rollout", "image": "any"}],
        },
        "status": {
            "phase": "Running",
            "initContainerStatuses": [{"name": fetch["name"], "state": {"terminated": {"exitCode": 0}}}],
        },
    }
    cache, now = KubeCache(), datetime(2026, 1, 1, tzinfo=UTC)
    cache.put(pod)
    kept = cache.get(("default", "j"), Ref("Pod", "default", "j-rollout-a-0"))
    assert kept is not None
    assert "managedFields" not in kept["metadata"]
    assert read_pod(kept, now) == read_pod(pod, now)
    assert read_pod(kept, now).tolerations
