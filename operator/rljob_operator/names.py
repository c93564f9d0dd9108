"""Names that the operator gives: labels, annotations, child objects, files in a pod.

Children of two jobs of one namespace must not have the same name. A child's name is the job's with words after it, and
only `-rollout-` is followed by a word that the user chooses, the pool's name. So names of two jobs can meet only where
one job is called as the other one's pools are: job `a` with the pool `b`, and a job `a-rollout-b`. Such a job's name is
`ambiguous`, and the operator starts no job that has one. Names that are too long end in 32 bits of their SHA-256
instead; two that meet nevertheless are found when the second one is written (`cluster.port.NameTaken`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import sha256

from rljob_core.spec import GROUP


class Role(StrEnum):
    """A worker's role, in the order in which a job is stopped: who still needs the others goes first."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"
    REWARD = "reward"
    COORDINATOR = "coordinator"


LABEL_NAME, LABEL_INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
LABEL_JOB = f"{GROUP}/job"
LABEL_ROLE = f"{GROUP}/role"
LABEL_POOL = f"{GROUP}/pool"
LABEL_KEPT = f"{GROUP}/kept"
"""On what stays when a job is suspended or has ended; it goes with the job."""
LABEL_ATTEMPT = f"{GROUP}/attempt"

CONFIG_HASH = f"{GROUP}/config-hash"
"""Annotation: digest of what a role reads of the configuration; another one means other pods."""
APPLIED_HASH = f"{GROUP}/applied-hash"
"""Annotation: digest of the manifest as we last wanted it; finds fields that we no longer want."""
SPEC_REPLICAS = f"{GROUP}/spec-replicas"
"""Annotation of a RolloutPool: the RLJob's own value when `replicas` was last written from it."""
FAILURES = f"{GROUP}/failures"
"""Annotation of a trainer Job: failed attempts before it."""

ANY_WORKER = "worker"
"""In the operator's worker template: the container of whichever role."""

CONFIG_FILE = "config.json"
CONFIG_FOLDER = "/etc/rljob"
WORKER_CONFIGS_FOLDER = "/etc/rljob-workers"
"""In the audit's pod: the configurations that the workers' pods mount, each a file named after its ConfigMap."""
JWT_FILE = "jwt"
JWT_FOLDER = "/etc/rljob-nats"
RUN_FOLDER = "/run/rljob"
SCORING_FOLDER = "/run/rljob-scoring"
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


def child(job: str, role: Role, pool: str | None = None) -> str:
    """Name of a role's Deployment, or of the trainer's Service."""
    return _fit(f"{job}-{role}-{pool}" if pool is not None else f"{job}-{role}")


def config_map(owner: str) -> str:
    """Name of the ConfigMap that belongs to an RLJob or a RolloutPool."""
    return _fit(f"{owner}-config")


def audit(job: str) -> str:
    """Name of the ConfigMap, and the Pod in it, by which a job is audited; and of that Pod's NetworkPolicy."""
    return _fit(f"{job}-audit")


def tokens(job: str) -> str:
    """Name of the ConfigMap with the NATS tokens of a job's roles."""
    return _fit(f"{job}-nats-tokens")


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


def trainer_job(job: str, attempt: int) -> str:
    """Name of the Job of one trainer attempt."""
    return _fit(f"{job}-trainer-{attempt}")


def identity(job: str, role: Role, pool: str | None = None) -> dict[str, str]:
    """Labels that select a role's pods; they never change, as selectors cannot."""
    labels = {LABEL_JOB: job, LABEL_ROLE: role.value}
    return labels if pool is None else {**labels, LABEL_POOL: pool}


def labels(job: str, role: Role | None = None, pool: str | None = None) -> dict[str, str]:
    """All labels of a child."""
    common = {
        LABEL_NAME: "rljob",
        LABEL_INSTANCE: job,
        "app.kubernetes.io/managed-by": "rljob-operator",
        LABEL_JOB: job,
    }
    if role is None:
        return common
    return {**common, "app.kubernetes.io/component": role.value, **identity(job, role, pool)}


def command_labels(job: str, command: str) -> dict[str, str]:
    """Labels of a Pod that runs a command of `rljob` about a job; it has none of a child."""
    return {LABEL_NAME: f"rljob-{command}", LABEL_INSTANCE: job}
