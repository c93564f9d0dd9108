"""Names that the operator gives: labels, annotations, child objects, files in a pod.

Children of two jobs of one namespace must not have the same name. A child's name is the job's with words after it, and
only `-rollout-` is followed by a word that the user chooses, the pool's name (a tracker's ends in a digest). So names
of two jobs can meet only where one job is called as the other one's pools are: job `a` with the pool `b`, and a job
`a-rollout-b`. Such a job's name is `ambiguous`, and the operator starts no job that has one. Names that are too long
end in 32 bits of their SHA-256 instead; two that meet nevertheless are found when the second one is written
(`cluster.port.NameTaken`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

from rljob_core.spec import GROUP


class Role(StrEnum):
    """A worker's role, in the order in which a job is stopped: who still needs the others goes first."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"
    ENVIRONMENT = "environment"
    """Plays the episodes of rollout workers, and has no part in the job's streams."""
    REWARD = "reward"
    COORDINATOR = "coordinator"
    TRACKER = "tracker"
    """Sends the metrics to an experiment tracker; nobody needs it."""


WORKERS = tuple(role for role in Role if role is not Role.ENVIRONMENT)
"""The roles that run a worker, a client of the job's streams."""

MANAGED_BY = f"{GROUP}/operator"
"""`spec.managedBy` of an RLJob that this operator reconciles, unless it has none."""
_SITE_MANAGER = f"{GROUP}/site-"


def site_manager(site: str) -> str:
    """`managedBy` of a RolloutPool whose engines the operator of a site runs."""
    return f"{_SITE_MANAGER}{site}"


def managing_site(managed_by: str | None) -> str | None:
    """The site whose operator runs the engines of a RolloutPool with that `managedBy`; None if it is no site's."""
    if managed_by is None or not managed_by.startswith(_SITE_MANAGER):
        return None
    return managed_by.removeprefix(_SITE_MANAGER)


LABEL_NAME, LABEL_INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
LABEL_NAMESPACE = "kubernetes.io/metadata.name"
"""Kubernetes' own label of each namespace."""
LABEL_JOB = f"{GROUP}/job"
LABEL_ROLE = f"{GROUP}/role"
LABEL_POOL = f"{GROUP}/pool"
LABEL_TRACKER = f"{GROUP}/tracker"
"""Which of `spec.trackers` a tracker's pod serves: `tracker_part` of its name."""
LABEL_KEPT = f"{GROUP}/kept"
"""On what stays when a job is suspended or has ended; it goes with the job."""
LABEL_ATTEMPT = f"{GROUP}/attempt"

_PARTS = {Role.TRACKER: LABEL_TRACKER}

CONFIG_HASH = f"{GROUP}/config-hash"
"""Annotation: digest of what a role reads of the configuration; another one means other pods."""
APPLIED_HASH = f"{GROUP}/applied-hash"
"""Annotation: digest of the manifest as we last wanted it; finds fields that we no longer want."""
SPEC_REPLICAS = f"{GROUP}/spec-replicas"
"""Annotation of a RolloutPool: the RLJob's own value when `replicas` was last written from it."""
FAILURES = f"{GROUP}/failures"
"""Annotation of a trainer Job: failed attempts before it."""
GANG = f"{GROUP}/gang"
"""Annotation of a trainer Job: the kind of object by which its pods are placed together; none if each is by itself."""
GANG_ASKED = f"{GROUP}/gang-asked"
"""Annotation of a trainer Job: `trainer.gang` of the job when it was made."""

HUB_UID = f"{GROUP}/hub-uid"
"""Annotation of a RolloutPool at a site: uid of the hub's RolloutPool that it was made from."""
HUB_GENERATION = f"{GROUP}/hub-generation"
"""Annotation of a RolloutPool at a site: generation of the hub's RolloutPool that it was made from."""

QUEUE_NAME, QUEUE_PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
"""Kueue's labels of an RLJob: the LocalQueue that it waits in, and its WorkloadPriorityClass."""

ANY_WORKER = "worker"
"""In the operator's worker template: the container of whichever role."""

FORGET_SITE = f"{GROUP}/forget"
"""Annotation of a Site: the time of its last beat, after which it is to count as lost; NEVER_HEARD if there is none."""
NEVER_HEARD = "never"
CONFIG_FILE = "config.json"
CONFIG_FOLDER = "/etc/rljob"
WORKER_CONFIGS_FOLDER = "/etc/rljob-workers"
"""In the audit's pod: the configurations that the workers' pods mount, each a file named after its ConfigMap."""
JWT_FILE = "jwt"
JWT_FOLDER = "/etc/rljob-nats"
ENVIRONMENT_FOLDER = "/etc/rljob-environment"
RUN_FOLDER = "/run/rljob"
SCORING_FOLDER = "/run/rljob-scoring"
DOWNLOADS_FOLDER = "/mnt/downloads"
"""Where a worker finds what was downloaded."""
DOWNLOAD_CACHE = "/mnt/download-cache"
"""The cache of a pod whose job names none."""
TERMINATION_LOG = "/dev/termination-log"

# A Job's pods are `<name>-<index>`, which must fit into a host name of 63 characters.
_LONGEST_NAME = 52
_POOL_PART = re.compile(rf"-{Role.ROLLOUT}(-|$)")


def ambiguous(job: str) -> bool:
    """Whether names of this job's children could be those of the children of a pool of another job."""
    return _POOL_PART.search(job) is not None


def _fit(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def child(job: str, role: Role, part: str | None = None) -> str:
    """Name of a role's Deployment, or of the trainer's Service; `part` is the pool, or `tracker_part`."""
    return _fit(f"{job}-{role}-{part}" if part is not None else f"{job}-{role}")


def tracker_part(tracker: str) -> str:
    """What stands for a tracker in names and labels: its name, as far as they allow, and 24 bits of its SHA-256.

    Not its place in the list: a tracker whose place changes would have two processes for a time.
    """
    word = re.sub(r"[^a-z0-9]+", "-", tracker.lower())[:20].strip("-")
    return f"{word}-{sha256(tracker.encode()).hexdigest()[:6]}"


def config_map(owner: str) -> str:
    """Name of the ConfigMap that belongs to an RLJob or a RolloutPool."""
    return _fit(f"{owner}-config")


def audit(job: str) -> str:
    """Name of the ConfigMap, and the Pod in it, by which a job is audited; and of that Pod's NetworkPolicy."""
    return _fit(f"{job}-audit")


def workload(job: str, pool: str | None = None, number: int = 0) -> str:
    """Name of a job's Workload in a queue; with a pool, of the one of a further engine."""
    if pool is None:
        return _fit(f"{job}-queued")
    return f"{_fit(f'{job}-queued-{pool}')}-{number}"


def workload_number(name: str) -> int:
    """The number of a further engine, by the name of its Workload."""
    return int(name.rpartition("-")[2])


def tokens(job: str) -> str:
    """Name of the ConfigMap with the NATS tokens of a job's roles."""
    return _fit(f"{job}-nats-tokens")


def viewer(job: str) -> str:
    """Name of the ConfigMap by which people look at a job: its NATS server's address, and a viewer's credentials."""
    return _fit(f"{job}-viewer")


def backup(job: str) -> str:
    """Name of the Pod that backs a job up, and of its NetworkPolicy, which is that of a restore, too."""
    return _fit(f"{job}-backup")


def restore(job: str) -> str:
    """Name of the Pod that restores a job from a backup."""
    return _fit(f"{job}-restore")


def service_account(job: str) -> str:
    """Name of the workers' ServiceAccount."""
    return _fit(f"{job}-worker")


def network_policy(job: str) -> str:
    """Name of the workers' NetworkPolicy."""
    return _fit(f"{job}-workers")


def trackers(job: str) -> str:
    """Name of the NetworkPolicy of the trackers' pods."""
    return _fit(f"{job}-trackers")


def trainer_job(job: str, attempt: int) -> str:
    """Name of the Job of one trainer attempt."""
    return _fit(f"{job}-trainer-{attempt}")


def identity(job: str, role: Role, part: str | None = None) -> dict[str, str]:
    """Labels that select a role's pods, of a pool or tracker as for `child`; they never change, as selectors cannot."""
    labels = {LABEL_JOB: job, LABEL_ROLE: role.value}
    return labels if part is None else {**labels, _PARTS.get(role, LABEL_POOL): part}


def part(labels: Mapping[str, str]) -> str | None:
    """The part that `child` and `identity` got, by the labels of an object; None if they got none."""
    return labels.get(LABEL_POOL, labels.get(LABEL_TRACKER))


def labels(job: str, role: Role | None = None, part: str | None = None) -> dict[str, str]:
    """All labels of a child; `part` as for `child`."""
    common = {
        LABEL_NAME: "rljob",
        LABEL_INSTANCE: job,
        "app.kubernetes.io/managed-by": "rljob-operator",
        LABEL_JOB: job,
    }
    if role is None:
        return common
    return {**common, "app.kubernetes.io/component": role.value, **identity(job, role, part)}


def command_labels(job: str, command: str) -> dict[str, str]:
    """Labels of a Pod that runs a command of `rljob` about a job; it has none of a child."""
    return {LABEL_NAME: f"rljob-{command}", LABEL_INSTANCE: job}
