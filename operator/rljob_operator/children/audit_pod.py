"""PURE. What a user needs to audit a job on its cluster: a ConfigMap that stays as long as the job, with a Pod in it.

    kubectl get configmap JOB-audit --output 'jsonpath={.data.pod\\.yaml}' | kubectl create --filename -

The pod has the reader's credentials, which can change nothing, and the claims; it runs `rljob audit` on the job's
configuration, whether the job runs, is suspended or has ended.
"""

from __future__ import annotations

import json

from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults, config_text
from rljob_operator.children.metadata import child_metadata
from rljob_operator.children.worker_pod import reader_pod
from rljob_operator.cluster.port import Manifest

POD_FILE = "pod.yaml"


def audit_config_map(job: RLJob, defaults: ClusterDefaults) -> Manifest:
    """The ConfigMap `<job>-audit`: the job's configuration, and the Pod that reads it."""
    name = names.audit(job.metadata.name)
    metadata = child_metadata(job, name, None)
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
        "spec": reader_pod(
            job, defaults, name, ["rljob", "audit", f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"]
        ),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        # JSON is YAML; this way nothing is folded or quoted in surprising ways.
        "data": {names.CONFIG_FILE: config_text(job, defaults), POD_FILE: json.dumps(pod, indent=2)},
    }
