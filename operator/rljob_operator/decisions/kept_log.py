"""Which trainer's pods a failed job keeps: those of a gang that has failed, because the API server has their log.

A pod whose containers have ended holds neither accelerator nor memory. Kubernetes itself ends the other pods of a gang
of which one has failed (`backoffLimit` 0). All of them go with the job.
"""

from __future__ import annotations

from rljob_operator import names
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role


def log_holder(observed: Observed) -> Manifest | None:
    """The Job of the newest trainer attempt, if one of its pods has failed and the cluster keeps logs; else None."""
    if not observed.keeps_log:
        return None
    newest = max((gang.attempt for gang in observed.gangs), default=None)
    failed = any(
        pod.attempt == newest and not pod.terminating and pod.exit is not None and pod.exit.code != 0
        for pod in observed.pods
    )
    if newest is None or not failed:
        return None
    ref = Ref("Job", observed.job.metadata.namespace, names.trainer_job(observed.job.metadata.name, newest))
    found = observed.children.get(ref)
    return None if found is None or "deletionTimestamp" in found["metadata"] else found


def at_rest(observed: Observed, *, failed: bool) -> bool:
    """Whether nothing is left of a job that has stopped but what stays, all of whose pods have ended.

    Args:
        observed: what is known of the job.
        failed: whether it has failed, and so keeps the pods of `log_holder`.
    """
    holder = log_holder(observed) if failed else None
    if holder is None:
        return not observed.at_work
    kept = Ref.of(holder)
    attempt = int(holder["metadata"]["labels"][names.LABEL_ATTEMPT])
    pods = all(pod.role is Role.TRAINER and pod.attempt == attempt and pod.exit for pod in observed.pods)
    return pods and all(
        ref == kept or names.LABEL_KEPT in manifest["metadata"]["labels"]
        for ref, manifest in observed.children.items()
    )
