"""Changes of an RLJob on a cluster: checked as `rljob patch` checks them, and then by the API server."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rljob_cli.kubectl.cluster import UserCluster
from rljob_cli.kubectl.mirror import job_of
from rljob_cli.kubectl.refusals import ClusterConflict
from rljob_cli.manifest.differences import by_name, differences
from rljob_cli.manifest.load import change_job, full_path, override
from rljob_core.errors import SpecError
from rljob_operator.cluster.port import Manifest

_ENDED = ("Succeeded", "Failed")


def patch_job(cluster: UserCluster, name: str, texts: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Change fields of a job's spec.

    Args:
        cluster: where the job is.
        name: its name.
        texts: `path=value` each, with or without a leading `spec.`.

    Returns:
        The changed fields: path, value before, value after.

    Raises:
        SpecError, InvalidManifest: the change is refused, and nothing is changed.
        ClusterRefused: the API server does not answer, or does not allow it.
    """
    before = cluster.job(name)
    after = deepcopy(before)
    for text in texts:
        if not full_path(text).startswith("spec."):
            raise SpecError(
                "--set", f"{text!r}: only fields of spec are changed here; kubectl changes metadata"
            )
    job = job_of(before, cluster.namespace, before["metadata"]["uid"])
    change_job(job, texts, Path("/"))  # only to check it: defaults of this release are not written
    for text in texts:
        override(after, text)
    fields = list(differences(by_name(before["spec"]), by_name(after["spec"]), "spec"))
    if fields:
        _refuse_if_ended(before)
        _patch(cluster, before, after["spec"])
    return fields


def suspend_job(cluster: UserCluster, name: str, *, suspended: bool) -> bool:
    """Set `spec.suspend`; returns whether that changed it.

    Raises:
        SpecError: the job has ended.
        ClusterRefused: as `patch_job`.
    """
    job = cluster.job(name)
    _refuse_if_ended(job)
    if bool(job["spec"].get("suspend", False)) == suspended:
        return False
    cluster.patch_job(name, {"spec": {"suspend": suspended}})
    return True


def _refuse_if_ended(job: Manifest) -> None:
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in _ENDED and condition["status"] == "True":
            raise SpecError(
                job["metadata"]["name"],
                f"has ended ({condition['type']}), and a job that has ended stays so: create another one",
            )


def _patch(cluster: UserCluster, before: Manifest, spec: Manifest) -> None:
    """Write the fields of the spec that differ; lists are written as a whole, as merge patches have it.

    The operator writes the status all the time, which is another version of the object, too.

    Raises:
        SpecError: somebody else has changed the spec meanwhile.
    """
    name, newest = before["metadata"]["name"], before
    changes = _merge(before["spec"], spec)
    while newest["spec"] == before["spec"]:
        version = {"resourceVersion": newest["metadata"]["resourceVersion"]}
        try:
            cluster.patch_job(name, {"metadata": version, "spec": changes})
        except ClusterConflict:
            newest = cluster.job(name)
        else:
            return
    raise SpecError(name, "was changed by somebody else at the same time: give the same command again")


def _merge(before: Manifest, after: Manifest) -> Manifest:
    changed: Manifest = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if old == value:
            continue
        changed[name] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return changed
