"""What the condition `Failed` of a cluster's job says besides the error: who was at fault, the log, what to do next.

`rljob run` says the same of a run in its own words, so nothing is added to the status of a local job.
"""

from __future__ import annotations

from dataclasses import replace

from rljob_core.failures import ADVICE, NATS_SERVER, Reason
from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.resolved_job import checkpoint_uri
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.kept_log import kept_gang
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.status import Assessment, Phase
from rljob_operator.names import Role


def added(assessment: Assessment, observed: Observed, defaults: ClusterDefaults) -> Assessment:
    """The assessment with the advice in the condition `Failed`, if the job has failed and runs on a cluster."""
    status, job = assessment.status, observed.job
    failed = condition(status, Phase.FAILED.value)
    if failed is None or failed.status != "True" or not defaults.per_job:
        return assessment
    advice = ADVICE[Reason.of(failed.reason, otherwise=Reason.UNKNOWN)]
    words = (
        failed.message or failed.reason,
        f"at fault: {advice.at_fault}",
        f"to do: {advice.elsewhere or advice.remedy}",
        f"log: {_log(advice.log, job, kept=bool(kept_gang(observed)))}",
        f"to continue: {_another_job(status, job, defaults)}",
    )
    said = failed.model_copy(update={"message": "; ".join(words)})
    conditions = [said if found is failed else found for found in status.conditions]
    return replace(assessment, status=status.model_copy(update={"conditions": conditions}))


def _log(role: str, job: RLJob, *, kept: bool) -> str:
    """Where the log is that says more. The API server serves the logs of pods only, and most pods end with their job.

    Args:
        role: whose log it is, or `NATS_SERVER`; empty for all.
        job: that has failed.
        kept: whether the trainer's pods stay.
    """
    if role == NATS_SERVER:
        return "that of the NATS server"
    labels = {names.LABEL_JOB: job.metadata.name}
    if role:
        labels[names.LABEL_ROLE] = role
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    command = f"kubectl logs --namespace={job.metadata.namespace} --selector={selector}"
    command = f"{command} --all-containers --prefix --tail=-1"
    if kept and role == Role.TRAINER:
        return f"{command}, while the job exists"
    trainers = "the trainer's while the job exists, the others' " if kept and not role else ""
    return f"{command}, {trainers}until its pods are deleted; then in the cluster's log store"


def _another_job(status: RLJobStatus, job: RLJob, defaults: ClusterDefaults) -> str:
    """What takes the place of a failed job, which has ended for good."""
    folder = checkpoint_uri(job, defaults)
    if not status.step or not folder:
        return "create another job"
    # Nothing leads from one name to another in an object store.
    newest = "step-…, its newest," if folder.startswith(storage.OBJECT_STORES) else "latest"
    return f"create another job; with spec.model.uri={folder}/{newest} it begins with the newest checkpoint of this one"
