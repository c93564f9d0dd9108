"""The object by which a scheduler places the pods of a trainer's attempt together, and what the pods say of it.

Its minimum is `minNodes` of an elastic trainer, else the number of its pods: no pod is placed while fewer of them have
room. For how many more there is room is seen by which of them find nodes, as without a gang. The object belongs to the
RLJob, has the name of the attempt's Job, and comes and goes with it.
"""

from __future__ import annotations

from rljob_operator import names
from rljob_operator.children.metadata import child_metadata
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.trainer_gang import trainer_template
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Label of pods: their PodGroup, as Coscheduling reads it."""
VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"
"""Annotation of pods: their PodGroup, as Volcano reads it."""
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of pods: their queue, as Volcano reads it of pods that have no PodGroup."""
VOLCANO_SCHEDULER = "volcano"
_WORKLOAD_GROUP = Role.TRAINER.value


def with_gang(job: ResolvedJob, trainer: Manifest, kind: GangKind | None) -> list[Manifest]:
    """The Job of an attempt, before it the object of its gang.

    Args:
        job: the job.
        trainer: the Job, as if each pod were placed by itself.
        kind: of the gang's object; None for none.
    """
    metadata = trainer["metadata"]
    noted = {names.GANG_ASKED: job.spec.trainer.gang, **({} if kind is None else {names.GANG: kind.value})}
    trainer = {**trainer, "metadata": {**metadata, "annotations": {**metadata["annotations"], **noted}}}
    if kind is None:
        return [trainer]
    template = _member(trainer["spec"]["template"], kind, metadata["name"])
    trainer = {**trainer, "spec": {**trainer["spec"], "template": template}}
    least = min(job.spec.trainer.least_nodes, trainer["spec"]["completions"])
    owned = child_metadata(job.job, metadata["name"], Role.TRAINER)
    owned["labels"] |= {names.LABEL_ATTEMPT: metadata["labels"][names.LABEL_ATTEMPT]}
    spec = _spec(kind, metadata["name"], least, template)
    return [
        {"apiVersion": kind.api_version, "kind": kind.object_kind, "metadata": owned, "spec": spec},
        trainer,
    ]


def candidates(job: ResolvedJob, nodes: int) -> tuple[GangKind, ...]:
    """The kinds of objects by which an attempt's pods may be placed together; the first is best.

    `Auto` never sends pods to another scheduler: Volcano's object is for pods that a template sends there. Pods that a
    template puts into a group of the user's own are left in it.
    """
    asked = job.spec.trainer.gang
    if asked not in {"Auto", "None"}:
        return (GangKind(asked),)
    if asked == "None" or nodes == 1:
        return ()
    template = trainer_template(job, 0, nodes)
    metadata, spec = template["metadata"], template["spec"]
    if (
        "workloadRef" in spec
        or POD_GROUP_LABEL in metadata.get("labels", {})
        or VOLCANO_ANNOTATION in metadata.get("annotations", {})
    ):
        return ()
    if spec.get("schedulerName") == VOLCANO_SCHEDULER:
        return (GangKind.VOLCANO,)
    return GangKind.WORKLOAD, GangKind.POD_GROUP


def _member(template: Manifest, kind: GangKind, name: str) -> Manifest:
    """The pod template with what makes its pods members of the gang."""
    metadata, spec = template["metadata"], template["spec"]
    match kind:
        case GangKind.WORKLOAD:
            spec = {**spec, "workloadRef": {"name": name, "podGroup": _WORKLOAD_GROUP}}
        case GangKind.POD_GROUP:
            metadata = {**metadata, "labels": {**metadata["labels"], POD_GROUP_LABEL: name}}
        case GangKind.VOLCANO:
            metadata = {**metadata, "annotations": {**metadata["annotations"], VOLCANO_ANNOTATION: name}}
            spec = {"schedulerName": VOLCANO_SCHEDULER, **spec}
    return {**template, "metadata": metadata, "spec": spec}


def _spec(kind: GangKind, name: str, least: int, template: Manifest) -> Manifest:
    match kind:
        case GangKind.WORKLOAD:
            return {
                "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": name},
                "podGroups": [{"name": _WORKLOAD_GROUP, "policy": {"gang": {"minCount": least}}}],
            }
        case GangKind.POD_GROUP:
            return {"minMember": least}
        case GangKind.VOLCANO:
            queue = template["metadata"]["annotations"].get(VOLCANO_QUEUE)
            priority = template["spec"].get("priorityClassName")
            return {
                "minMember": least,
                **({} if queue is None else {"queue": queue}),
                **({} if priority is None else {"priorityClassName": priority}),
            }
