"""Writes kubeconfigs of one cluster, one user and one context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Object = dict[str, Any]


def write_kubeconfig(file: Path, cluster: Object, user: Object, namespace: str = "default") -> Path:
    """Write a kubeconfig (as JSON, which is YAML too) that only its owner can read, and return its path."""
    context = {"cluster": "test", "user": "test", "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(document))
    return file


def cluster_of(kubeconfig: Path) -> Object:
    """Address and certificate authority of the cluster of a kubeconfig that the harness wrote."""
    found: Object = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]
    return found
