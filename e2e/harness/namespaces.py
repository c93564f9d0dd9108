"""Namespaces that tests keep apart by."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.harness.kubectl import Kubectl
from e2e.harness.volumes import LABEL


@contextmanager
def own_namespace(kubectl: Kubectl, *, for_pods: bool = False) -> Iterator[str]:
    """A namespace that nobody else has; the API server goes on deleting it after the block.

    Args:
        kubectl: an administrator's.
        for_pods: wait for the service account that pods need, which a controller makes.
    """
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    if for_pods:
        kubectl.within(name).wait("create", "serviceaccount/default")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
    kubectl("delete", "persistentvolume", f"--selector={LABEL}={name}", "--wait=false")
