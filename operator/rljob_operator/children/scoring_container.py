"""The container of a reward worker's pod in which reward functions run, which may be code that a model has written.

It shares a folder with one Unix socket with the worker, and nothing else: it has no credentials, no configuration, no
claims, no folder and no process of the worker. So what a function can do is lie about scores, and waste its container.
"""

from __future__ import annotations

from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_operator import names
from rljob_operator.cluster.port import Manifest

SOCKET = f"{names.SCORING_FOLDER}/socket"
_SHARED = "scoring"
_MEMORY, _TEMPORARY = "1Gi", "8Gi"
"""Sizes of the container's `/dev/shm` and `/tmp`: functions fill neither the node's memory nor its disk."""
_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "8Gi"}}
#: Fields of the container `worker` in the operator's template that hold for this container, too.
_OF_ANY_WORKER = ("image", "imagePullPolicy", "resources", "securityContext")


def add_scoring_container(template: Manifest) -> Manifest:
    """The reward worker's pod template with the container, and with a worker that connects to it."""
    spec = template["spec"]
    (worker,) = spec["containers"]
    socket = {"name": worker_protocol.SCORING_SOCKET, "value": SOCKET}
    # Connecting to a socket is possible through a read-only mount; the worker need not write there.
    shared = {"name": _SHARED, "mountPath": names.SCORING_FOLDER}
    connecting = {
        **worker,
        "env": [*worker["env"], socket],
        "volumeMounts": [*worker["volumeMounts"], {**shared, "readOnly": True}],
    }
    scorer: Manifest = {
        "name": worker_protocol.SCORER,
        "image": worker["image"],
        "command": ["python", "-P", "-s", "-m", worker_protocol.SCORING_MODULE, SOCKET],
        "volumeMounts": [
            shared,
            {"name": "scoring-memory", "mountPath": "/dev/shm"},  # noqa: S108 the container's own
            {"name": "scoring-temporary", "mountPath": "/tmp"},  # noqa: S108
        ],
        "livenessProbe": {
            # Isolated: no folder that functions may write to is imported from.
            "exec": {"command": ["python", "-I", "-m", worker_protocol.SCORING_PROBE, SOCKET]},
            "periodSeconds": 30,
            "timeoutSeconds": 15,
            "failureThreshold": 4,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": worker["securityContext"],
    }
    volumes = [
        *spec["volumes"],
        {"name": _SHARED, "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "scoring-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _MEMORY}},
        {"name": "scoring-temporary", "emptyDir": {"sizeLimit": _TEMPORARY}},
    ]
    # Links to Services would tell the container where the namespace's servers are.
    links = {"enableServiceLinks": False}
    return {
        **template,
        "spec": {**spec, **links, "containers": [connecting, scorer], "volumes": volumes},
    }


def limit_scoring_container(spec: Manifest) -> None:
    """Let functions take no more memory than `_RESOURCES` say, if no template says more or less of their container."""
    for container in spec["containers"]:
        if container["name"] == worker_protocol.SCORER:
            container.setdefault("resources", _RESOURCES)


def of_any_worker(container: Manifest, name: str = worker_protocol.SCORER) -> Manifest:
    """What the operator's template for any worker's container says of a container that runs code of users."""
    kept = {field: container[field] for field in _OF_ANY_WORKER if field in container}
    return {"name": name, **kept}


def check_separation(spec: Manifest, path: str) -> None:
    """Refuse a pod whose containers see each other's processes, and with them each other's memory and variables.

    Raises:
        SpecError: it is such a pod.
    """
    for field in ("shareProcessNamespace", "hostPID"):
        if spec.get(field):
            raise SpecError(
                f"{path}.spec.{field}",
                "would let reward functions read the worker's credentials from its memory: remove it",
            )
