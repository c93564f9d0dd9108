"""The pods that play a job's episodes: a Deployment, its Service, which has their addresses, its policies and budget.

They run code that nobody has reviewed. So they have none of the job's credentials, claims and configuration, only the
key by which they know its rollout workers, and those know them. They accept connections of these workers alone, and
open none, unless the environment's `network` allows it.
"""

from __future__ import annotations

import json

from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.spec import EnvironmentSpec
from rljob_operator import names
from rljob_operator.children.egress import EPISODES, environment_egress
from rljob_operator.children.environment_keys import FIELD, environment_of, pod_access, secrets
from rljob_operator.children.metadata import child_metadata, policy_manifest
from rljob_operator.children.queue_admission import placed
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.scoring_container import of_any_worker
from rljob_operator.children.server_rules import tcp
from rljob_operator.children.templates import (
    container_security,
    merge,
    pod_security,
    tolerations_for_lost_nodes,
)
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

_LONGEST_GRACE = 600
_LONGEST_SETUP = 100_000
"""Bytes: a variable of a process has 128 KiB at most."""
_ALIVE = '! test -e "$1" || test $(($(date +%s) - $(stat -c %Y "$1"))) -lt 60'
"""A server that is ready touches its file every few seconds; one that stands still is started again by the kubelet."""


def environment_children(job: ResolvedJob) -> list[Manifest]:
    """All that a job's environment pods need; nothing if it has none.

    Raises:
        SpecError: the template does not fit, the options are too large, or the operator has no seed to make keys of.
    """
    environment = environment_of(job)
    if environment is None:
        return []
    return [
        *secrets(job),
        _network_policy(job, environment),
        _service(job),
        _disruption_budget(job),
        _deployment(job, environment),
    ]


def _service(job: ResolvedJob) -> Manifest:
    """Headless: its name has the addresses of all pods that are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(
            job.job, names.child(job.metadata.name, Role.ENVIRONMENT), Role.ENVIRONMENT
        ),
        "spec": {
            "clusterIP": "None",
            "selector": names.identity(job.metadata.name, Role.ENVIRONMENT),
            "ports": [{"name": "episodes", "port": EPISODES}],
        },
    }


def _network_policy(job: ResolvedJob, environment: EnvironmentSpec) -> Manifest:
    name = job.metadata.name
    workers = {"podSelector": {"matchLabels": names.identity(name, Role.ROLLOUT)}}
    return policy_manifest(
        # Of no role, so that it is deleted only when the pods, which play on in their grace, have ended.
        child_metadata(job.job, names.child(name, Role.ENVIRONMENT), None),
        {"matchLabels": names.identity(name, Role.ENVIRONMENT)},
        ingress=[{"from": [workers], "ports": [tcp(EPISODES)]}],
        egress=environment_egress(job) if environment.network else [],
    )


def _disruption_budget(job: ResolvedJob) -> Manifest:
    """Evict one pod at a time: those that are left play on, and the next one goes once its successor is ready."""
    name = job.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(job.job, names.child(name, Role.ENVIRONMENT), Role.ENVIRONMENT),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.identity(name, Role.ENVIRONMENT)},
        },
    }


def _deployment(job: ResolvedJob, environment: EnvironmentSpec) -> Manifest:
    name = job.metadata.name
    template = merge(
        _template(job, environment), _of_cluster(job.defaults.template), "the operator's worker template"
    )
    template = merge(template, environment.template or {}, f"{FIELD}.template")
    if job.defaults.admission is not None:
        template = placed(template, job.defaults.admission.placements.get(Role.ENVIRONMENT.value))
    spec = template["spec"]
    spec["tolerations"] = tolerations_for_lost_nodes(spec.get("tolerations") or [])
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(job.job, names.child(name, Role.ENVIRONMENT), Role.ENVIRONMENT),
        "spec": {
            "replicas": environment.replicas,
            "selector": {"matchLabels": names.identity(name, Role.ENVIRONMENT)},
            # A new pod is ready only if its image can play: with one that cannot, the old pods stay.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
            "template": template,
        },
    }


def _template(job: ResolvedJob, environment: EnvironmentSpec) -> Manifest:
    ready_file, keys = f"{names.RUN_FOLDER}/ready", pod_access(job)
    container: Manifest = {
        "name": Role.ENVIRONMENT.value,
        "image": environment.image or job.image,
        "command": ["python", "-m", worker_protocol.ENVIRONMENT_MODULE, f":{EPISODES}"],
        "env": [
            {"name": worker_protocol.ENVIRONMENT_SETUP, "value": _setup(environment)},
            {"name": worker_protocol.READY_FILE, "value": ready_file},
            {"name": worker_protocol.TERMINATION_LOG, "value": names.TERMINATION_LOG},
            *keys.variables,
        ],
        "ports": [{"name": "episodes", "containerPort": EPISODES}],
        "volumeMounts": [
            {"name": "run", "mountPath": names.RUN_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 the container's own
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
            *keys.mounts,
        ],
        "readinessProbe": {"exec": {"command": ["test", "-e", ready_file]}, "periodSeconds": 2},
        "livenessProbe": {
            "exec": {"command": ["sh", "-c", _ALIVE, "alive", ready_file]},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
    }
    return {
        "metadata": {"labels": names.labels(job.metadata.name, Role.ENVIRONMENT)},
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": "run", "emptyDir": {}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
                {"name": "temporary", "emptyDir": {}},
                *keys.volumes,
            ],
            "imagePullSecrets": [{"name": name} for name in job.spec.image_pull_secrets],
            # In which a pod that is to end plays its episodes to their end.
            "terminationGracePeriodSeconds": min(environment.episode_seconds, _LONGEST_GRACE),
            "serviceAccountName": names.service_account(job.metadata.name),
            "automountServiceAccountToken": False,
            # Links to Services would tell the container where the namespace's servers are.
            "enableServiceLinks": False,
            "securityContext": pod_security(),
        },
    }


def _setup(environment: EnvironmentSpec) -> str:
    """What the pods play, as `rljob_runtime.environments.messages.EnvironmentSetup` has it."""
    text = json.dumps(
        {
            "name": environment.name,
            "options": environment.options,
            "timeout_seconds": environment.timeout_seconds,
            "network": environment.network,
            "own_loopback": environment.own_loopback,
        }
    )
    if len(text.encode()) > _LONGEST_SETUP:
        raise SpecError(
            f"{FIELD}.options",
            f"take {len(text.encode())} bytes, of at most {_LONGEST_SETUP}: keep them in a file of the image",
        )
    return text


def _of_cluster(template: Manifest) -> Manifest:
    """The cluster's template for these pods: of a worker's container, what holds for containers with users' code."""
    if "spec" not in template:
        return template
    containers = []
    for container in template["spec"].get("containers") or []:
        if container.get("name") == names.ANY_WORKER:
            containers.append(of_any_worker(container, Role.ENVIRONMENT.value))
        elif container.get("name") != worker_protocol.SCORER:
            containers.append(container)
    return {**template, "spec": {**template["spec"], "containers": containers}}
