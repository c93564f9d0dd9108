"""The ConfigMap with which a user audits a job on its cluster: it holds the job's configuration and a Pod manifest.

    kubectl get configmap JOB-audit --output 'jsonpath={.data.pod\\.yaml}' | kubectl create --filename -

The pod gets read-only NATS credentials and the job's volume claims; it runs `rljob audit` on the job's configuration.
The ConfigMap exists as long as the RLJob, so the audit works while the job runs, is suspended, or has ended.
"""

from __future__ import annotations

import json

from rljob_operator import names
from rljob_operator.children.metadata import child_metadata
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.worker_pod import reader_pod
from rljob_operator.cluster.port import Manifest

POD_FILE = "pod.yaml"


def audit_config_map(job: ResolvedJob) -> Manifest:
    """The ConfigMap `<job>-audit`: the job's configuration, and the Pod that audits the job."""
    name = names.audit(job.metadata.name)
    metadata = child_metadata(job.job, name, None)
    metadata["labels"] |= {names.LABEL_KEPT: "true"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {
                "app.kubernetes.io/name": "rljob-audit",
                "app.kubernetes.io/instance": job.metadata.name,
            },
        },
        "spec": reader_pod(job, name, ["rljob", "audit", f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"]),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        # JSON is valid YAML, and no YAML writer folds or quotes it in surprising ways.
        "data": {names.CONFIG_FILE: job.config_text, POD_FILE: json.dumps(pod, indent=2)},
    }
