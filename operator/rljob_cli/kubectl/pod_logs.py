"""The logs of a job's pods, printed side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import typer

from rljob_cli.kubectl.cluster import UserCluster
from rljob_cli.samples.harmless import harmless
from rljob_core.errors import RLJobError, SpecError
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role


def print_logs(
    cluster: UserCluster, job: str, *, role: str, follow: bool, previous: bool, tail: int | None
) -> None:
    """Print the logs of all containers of a job's pods.

    Args:
        cluster: where the job is.
        job: its name.
        role: only of this one; empty for all.
        follow: go on with new lines until the containers end.
        previous: of the containers that ran before those that run now; containers that have none are left out.
        tail: this many lines of each log at most; None for all.

    Raises:
        SpecError: there is no such role, or no pod has a log.
        ClusterRefused: a log cannot be read.
    """
    if role and role not in set(Role):
        raise SpecError("--role", f"is one of {', '.join(Role)}, not {role}")
    pods = cluster.pods(job, role)
    found = [(pod, container) for pod in pods for container in _containers(pod, previous=previous)]
    if not found:
        what = f"pods of role {role}" if role else "pods"
        before = " that were restarted" if previous else ""
        raise SpecError(
            job,
            f"has no {what}{before}: `kubectl rljob describe {job}` says how it is. Logs go with their pods; older "
            "ones are in the cluster's log store",
        )
    several = len({container for _, container in found}) > len(
        {pod["metadata"]["labels"].get("rljob.dev/role") for pod in pods}
    )
    failed: list[RLJobError] = []

    def show(pod: str, container: str) -> None:
        head = f"[{pod}/{container}]" if several else f"[{pod}]"
        try:
            for line in cluster.log(pod, container, follow=follow, previous=previous, tail=tail):
                typer.echo(f"{head} {harmless(line.expandtabs())}")
        except RLJobError as error:
            failed.append(error)

    threads = [
        threading.Thread(target=show, args=(pod["metadata"]["name"], container), daemon=True)
        for pod, container in found
    ]
    for thread in threads:
        thread.start()
        if not follow:
            thread.join()
    for thread in threads:
        thread.join()
    if len(failed) == len(threads):
        raise failed[0]
    for error in failed:
        typer.echo(f"warning: {error}", err=True)


def _containers(pod: Manifest, *, previous: bool) -> Iterator[str]:
    """Names of the pod's containers that have a log: of those that wait, Kubernetes has none."""
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        if previous:
            if container.get("restartCount"):
                yield container["name"]
        elif container.get("state", {}).keys() & {"running", "terminated"} or container.get("restartCount"):
            yield container["name"]
