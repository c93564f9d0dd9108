"""Which trainer's pods a failed job keeps: those of a gang that has failed, because the API server has their log.

A pod whose containers have ended holds neither accelerator nor memory. Kubernetes itself ends the other pods of a gang
of which one has failed (`backoffLimit` 0). All of them go with the job.
"""

from __future__ import annotations

from rljob_operator import names
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.observe import Observed


def kept_gang(observed: Observed, *, failed: bool = True) -> tuple[Manifest, ...]:
    """The Job of the newest trainer attempt, if one of its pods has failed, and the pods are those of a cluster.

    Args:
        observed: what is known of the job.
        failed: whether the job has failed; any other job keeps none.
    """
    newest = max((gang.attempt for gang in observed.gangs), default=None)
    ended = any(
        pod.attempt == newest and not pod.terminating and pod.exit is not None and pod.exit.code != 0
        for pod in observed.pods
    )
    if newest is None or not (failed and ended and observed.keeps_log):
        return ()
    ref = Ref("Job", observed.job.metadata.namespace, names.trainer_job(observed.job.metadata.name, newest))
    found = observed.children.get(ref)
    return () if found is None or "deletionTimestamp" in found["metadata"] else (found,)


def at_rest(observed: Observed, *, failed: bool) -> bool:
    """Whether nothing is left of a job that has stopped but what stays, all of whose pods have ended."""
    kept = kept_gang(observed, failed=failed)
    if not kept:
        return not observed.at_work
    attempts = {int(manifest["metadata"]["labels"][names.LABEL_ATTEMPT]) for manifest in kept}
    stay = {*map(Ref.of, kept), *map(Ref.of, observed.kept)}
    return all(pod.attempt in attempts and pod.exit is not None for pod in observed.pods) and stay == {
        *observed.children
    }
