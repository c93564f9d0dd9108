"""Namespaces that tests keep apart by."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from e2e.harness.volumes import LABEL


@contextmanager
def own_namespace(kubectl: Kubectl, *, for_pods: bool = False, operated: bool = True) -> Iterator[str]:
    """A namespace that nobody else has; the API server goes on deleting it after the block.

    Args:
        kubectl: an administrator's.
        for_pods: wait for the service account that pods need, which a controller makes.
        operated: whether an operator runs after the block, which lets the jobs go that are left. If none does, they are
            let go here: a controller would try without end to delete the namespace, and keep half a core busy.
    """
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    if for_pods:
        kubectl.within(name).wait("create", "serviceaccount/default")
    yield name
    if not operated:
        _let_jobs_go(kubectl.within(name))
    kubectl("delete", "namespace", name, "--wait=false")
    kubectl("delete", "persistentvolume", f"--selector={LABEL}={name}", "--wait=false")


def _let_jobs_go(kubectl: Kubectl) -> None:
    with suppress(ClusterError):  # the test needed no RLJobs, and there is no such resource
        for job in kubectl("get", "rljobs", "--output=name").split():
            kubectl("patch", job, "--type=merge", '--patch={"metadata": {"finalizers": null}}')
