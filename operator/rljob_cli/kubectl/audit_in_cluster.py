"""Audits a job in a Pod of its namespace, which has the job's storage: the Pod in the ConfigMap `<job>-audit`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from rljob_cli.audit.table import EXIT_NOT_AUDITED
from rljob_cli.kubectl.cluster import UserCluster
from rljob_cli.kubectl.refusals import ClusterConflict, ClusterRefused
from rljob_core.errors import SpecError
from rljob_operator import names
from rljob_operator.children.audit_pod import POD_FILE
from rljob_operator.cluster.port import Manifest

_MARK = "rljob.dev/audit-id"
"""Annotation of the Pod: which run of this command has made it."""
_POLL_SECONDS = 1.0
_LONGEST_SECONDS = 900.0
_ENDED = {"Succeeded", "Failed"}


def audit_in_cluster(cluster: UserCluster, job: str, *, as_json: bool) -> int:
    """Run the Pod, print what it prints, and delete it; returns the exit code of `rljob audit`.

    Raises:
        SpecError: there is no such job, or it is being audited already.
        ClusterRefused: Pods may not be created, or the Pod does not start.
    """
    cluster.job(job)
    made = cluster.config_map(job, names.audit(job))
    if made is None or POD_FILE not in made:
        raise SpecError(job, f"has no ConfigMap {names.audit(job)}: the operator has not seen it yet")
    pod = json.loads(made[POD_FILE])
    (container,) = pod["spec"]["containers"]
    if as_json:
        container["command"].append("--json")
    name = pod["metadata"]["name"]
    with _created(cluster, pod):
        end = _until_ended(cluster, name)
        for line in cluster.log(name, container["name"], follow=False, previous=False, tail=None):
            typer.echo(line)
    return end


@contextmanager
def _created(cluster: UserCluster, pod: Manifest) -> Iterator[None]:
    """A Pod, which is deleted at the end, also if the answer to its creation was lost; never somebody else's."""
    name, mark = pod["metadata"]["name"], uuid.uuid4().hex
    pod["metadata"].setdefault("annotations", {})[_MARK] = mark
    try:
        try:
            cluster.create_pod(pod)
        except ClusterConflict as error:
            raise SpecError(
                name,
                "this Pod exists: the job is being audited, or an audit was cut off; wait until it has gone, or "
                f"kubectl -n {cluster.namespace} delete pod {name}",
            ) from error
        yield
    except BaseException:  # of Ctrl-C, too
        with suppress(ClusterRefused):
            _delete(cluster, name, mark)
        raise
    _delete(cluster, name, mark)


def _delete(cluster: UserCluster, name: str, mark: str) -> None:
    metadata = (cluster.pod(name) or {"metadata": {}})["metadata"]
    if metadata.get("annotations", {}).get(_MARK) == mark:
        cluster.delete_pod(name, metadata["uid"])


def _until_ended(cluster: UserCluster, name: str) -> int:
    until = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < until:
        status: dict[str, Any] = (cluster.pod(name) or {"status": {"phase": "Gone"}})["status"]
        if status.get("phase") == "Gone":
            raise ClusterRefused(f"the audit's pod {name} was deleted before it ended")
        if status.get("phase") in _ENDED:
            ends = [c["state"].get("terminated", {}) for c in status.get("containerStatuses", [])]
            return int(ends[0].get("exitCode", EXIT_NOT_AUDITED)) if ends else EXIT_NOT_AUDITED
        time.sleep(_POLL_SECONDS)
    raise ClusterRefused(f"the audit's pod {name} did not end in {_LONGEST_SECONDS / 60:.0f} minutes")
