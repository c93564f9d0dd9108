"""What a job downloads, as its pods report it: the revisions that it keeps, and the condition `ModelReady`.

The first pod of a job is its coordinator's. It resolves each URI to a revision; the operator keeps these in the job's
status, and only then makes the other pods, which download these revisions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rljob_core.errors import SpecError
from rljob_core.remote_uri import known_revision, remote_sources, uri_digest
from rljob_core.spec import DownloadStatus
from rljob_core.worker_protocol import FETCH_MODEL
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import ConditionKind, ConditionValue
from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role

_READY: Final = "ModelReady"


def downloads(observed: Observed) -> list[DownloadStatus]:
    """What the job downloads, at which revision: once one is known, it stays while the job names the URI."""
    try:
        sources = remote_sources(observed.job.spec)
    except SpecError:  # of a manifest that cannot be used, and may be put right
        return list(observed.status.downloads)
    known = {(one.name, one.uri): one.revision for one in observed.status.downloads}
    reported: dict[tuple[str, str], str] = {}
    for pod in observed.pods:
        if pod.role is Role.COORDINATOR and pod.fetch is not None:
            reported |= pod.fetch.revisions
    by_digest = {(one.name, uri_digest(one.uri)): (one.name, one.uri) for one in sources}
    of_now = {by_digest[key]: revision for key, revision in reported.items() if key in by_digest}
    found = []
    for source in sources:
        revision = known_revision(source, sources, known) or known_revision(source, sources, of_now)
        if revision:
            known[source.name, source.uri] = revision
            found.append(DownloadStatus(name=source.name, uri=source.uri, revision=revision))
    return found


def with_revisions(defaults: ClusterDefaults, observed: Observed) -> ClusterDefaults:
    """The cluster's defaults with the known revisions, by the name of what is downloaded."""
    revisions = {one.name: one.revision for one in downloads(observed)}
    return replace(defaults, revisions=revisions) if revisions else defaults


def held_back(observed: Observed, resolved: ResolvedJob) -> list[Manifest]:
    """The reward workers that a job has, as they are, while the coordinator's pod looks for what was added to the job.

    The others that are at work need none of that.
    """
    if not resolved.unresolved or not observed.has_run:
        return []
    return [
        manifest
        for ref, manifest in observed.children.items()
        if ref.kind == "Deployment"
        and manifest["metadata"]["labels"].get(names.LABEL_ROLE) == Role.REWARD.value
    ]


def unresolved(observed: Observed) -> list[str]:
    """The URIs whose revision is not known yet."""
    known = {one.name for one in downloads(observed)}
    return [source.uri for source in remote_sources(observed.job.spec) if source.name not in known]


def model_condition(observed: Observed) -> dict[ConditionKind, ConditionValue]:
    """The condition, by its type; none if nothing is downloaded."""
    found = model_ready(observed)
    return {} if found is None else {_READY: found}


def model_ready(observed: Observed) -> ConditionValue | None:
    """The condition `ModelReady`: whether all pods have what they need; None if nothing is downloaded."""
    sources = remote_sources(observed.job.spec)
    if not sources:
        return None
    fetching = [pod for pod in observed.pods if pod.fetch is not None and not pod.terminating]
    waiting = [pod for pod in fetching if pod.fetch is not None and not pod.fetch.done]
    for pod in waiting:
        if pod.exit is not None and (failure := pod.exit.failure) is not None:
            return False, "DownloadFailed", f"{pod.name}: {failure.detail}"
        if pod.trouble is not None:
            return False, pod.trouble.reason, f"{pod.name}: {pod.trouble.message}"
    if unknown := unresolved(observed):
        words = f"the coordinator's pod looks up {', '.join(unknown)}"
        if silent := [pod.name for pod in fetching if pod.role is Role.COORDINATOR and pod not in waiting]:
            words += f"; {silent[0]} has named no revision of it: its image may be of another release"
        return False, "Resolving", words
    if waiting:
        there = len(fetching) - len(waiting)
        logs = f"how far: kubectl logs {waiting[0].name} -c {FETCH_MODEL}"
        return False, "Downloading", f"{there} of {len(fetching)} pods have all that they need; {logs}"
    found = (f"{one.uri} at {one.revision}" for one in downloads(observed))
    return True, "Downloaded", ", ".join(found)
