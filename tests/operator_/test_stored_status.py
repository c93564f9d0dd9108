"""Which status of a job the operator reads: also one that a newer operator has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubeconfigs import write_kubeconfig
from pydantic import ValidationError
from small_job import MakeJob

from rljob_core.spec import RLJobStatus
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.kube.cluster import KubeCluster
from rljob_operator.cluster.kube.login import KubeLogin

SUCCEEDED = {"type": "Succeeded", "status": "True", "reason": "TrainingComplete", "message": ""}
WRITTEN = {"trainerAttempt": 3, "conditions": [SUCCEEDED], "pools": [{"name": "cpu", "replicas": 2}]}
KNOWN = RLJobStatus.model_validate(WRITTEN)


@pytest.mark.parametrize(
    ("status", "read"),
    [
        (None, RLJobStatus()),
        (WRITTEN, KNOWN),
        ({**WRITTEN, "newer": {"a": 1}}, KNOWN),
        ({**WRITTEN, "conditions": [{**SUCCEEDED, "newer": "a"}]}, KNOWN),
        ({**WRITTEN, "pools": [{"name": "cpu", "replicas": 2, "newer": [1]}]}, KNOWN),
        ({**WRITTEN, "trainerAttempt": "three"}, RLJobStatus()),
    ],
)
async def test_fields_of_a_newer_operator_are_ignored(
    make_job: MakeJob, tmp_path: Path, status: dict[str, Any] | None, read: RLJobStatus
) -> None:
    job, cache = make_job(), KubeCache()
    metadata = {"name": job.metadata.name, "namespace": job.metadata.namespace, "uid": job.metadata.uid}
    stored = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": {}}
    assert cache.put(stored if status is None else {**stored, "status": status})
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", {"server": "http://127.0.0.1:1"}, {})
    assert await KubeCluster(KubeApi(KubeLogin(kubeconfig)), cache).status(job) == read


def test_elsewhere_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="newer"):
        RLJobStatus.model_validate({**WRITTEN, "newer": 1})
