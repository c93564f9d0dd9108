"""The init container that downloads what a job names by URI, before any worker of the pod starts.

Engines and trainers download the model, the other roles its settings and tokenizer, and the data sets. The container
alone has the credentials of the place, and may write to the cache. Without `spec.model.cache` the cache is a volume of
the pod; with it, the pods share one, and one of them downloads while the others wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core import worker_protocol
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

_LINKS, _CACHE = "downloads", "download-cache"
_READ_WEIGHTS = {Role.ROLLOUT, Role.TRAINER}


def add_download(template: Manifest, job: ResolvedJob, role: Role) -> Manifest:
    """A role's pod template with the container, and with a worker that sees what was downloaded.

    Args:
        template: of the role, with its container alone.
        job: the job.
        role: whose pod it is.
    """
    needed = {"model"} if role in _READ_WEIGHTS else set(job.config.downloads)
    if role is Role.TRACKER or not needed & job.config.downloads.keys():
        return template
    spec = template["spec"]
    (worker,) = spec["containers"]
    what = worker_protocol.FETCH_MODEL if role in _READ_WEIGHTS else worker_protocol.FETCH_DATA
    if role is Role.COORDINATOR and job.config.links:
        # By the size of the weights, it finds out whether a link is too slow for them.
        what = worker_protocol.FETCH_ALL
    mounts = [{"name": _LINKS, "mountPath": names.DOWNLOADS_FOLDER}]
    volumes: list[Manifest] = [{"name": _LINKS, "emptyDir": {}}]
    writable: list[Manifest] = []
    if job.spec.model.cache is None:
        mounts.append({"name": _CACHE, "mountPath": names.DOWNLOAD_CACHE})
        volumes.append({"name": _CACHE, "emptyDir": {}})
    else:
        writable = [storage.mount(claim, writable=True) for claim in storage.claims([job.spec.model.cache])]
    fetch: Manifest = {
        "name": worker_protocol.FETCH_MODEL,
        "image": worker["image"],
        "command": _command(what),
        "env": [
            {"name": worker_protocol.CONFIG, "value": f"{names.CONFIG_FOLDER}/{names.CONFIG_FILE}"},
            {"name": worker_protocol.TERMINATION_LOG, "value": names.TERMINATION_LOG},
        ],
        "envFrom": credentials(job),
        "volumeMounts": [
            {"name": "config", "mountPath": names.CONFIG_FOLDER, "readOnly": True},
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108 the container's own
            *mounts,
            *writable,
        ],
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": worker["securityContext"],
    }
    reader = {**worker, "volumeMounts": [*worker["volumeMounts"], *_read_only(mounts)]}
    return {
        **template,
        "spec": {
            **spec,
            "initContainers": [fetch],
            "containers": [reader],
            "volumes": [*spec["volumes"], *volumes],
        },
    }


def with_worker_settings(template: Manifest, base: Manifest, role: Role) -> Manifest:
    """The template with what patches add to the worker in the container, too, unless they give it its own.

    A proxy's variables, the certificates of a company's CA, the image, and the resources that a quota asks for then
    hold for downloads.

    Args:
        template: with the patches.
        base: without.
        role: whose pod it is.
    """
    spec = template["spec"]
    fetch = next(
        (c for c in spec.get("initContainers", []) if c["name"] == worker_protocol.FETCH_MODEL), None
    )
    if fetch is None:
        return template
    plain, worker = (_named(of["spec"]["containers"], role.value) for of in (base, template))
    made = dict(fetch)
    for field, key in (("env", "name"), ("volumeMounts", "mountPath")):
        ours = {one[key] for one in (*plain[field], *fetch[field])}
        made[field] = [*fetch[field], *(one for one in worker.get(field, []) if one[key] not in ours)]
    known = (*plain.get("envFrom", []), *fetch["envFrom"])
    made["envFrom"] = [*fetch["envFrom"], *(one for one in worker.get("envFrom", []) if one not in known)]
    for field in ("resources", "imagePullPolicy"):
        if field in worker:
            made.setdefault(field, worker[field])
    if fetch["image"] == plain["image"]:
        made["image"] = worker["image"]
    others = [made if one is fetch else one for one in spec["initContainers"]]
    return {**template, "spec": {**spec, "initContainers": others}}


def _named(containers: Sequence[Manifest], name: str) -> Manifest:
    return next(container for container in containers if container["name"] == name)


def credentials(job: ResolvedJob) -> list[Manifest]:
    """The variables of the job's Secret of credentials; none without one.

    A missing Secret then shows in the pod's status.
    """
    secret = job.spec.model.credentials_secret
    return [] if secret is None else [{"secretRef": {"name": secret}}]


def with_weights(containers: Sequence[Manifest]) -> list[Manifest]:
    """Of init containers, the one that downloads, with the model's weights; none if there is none."""
    return [
        {**container, "command": _command(worker_protocol.FETCH_MODEL)}
        for container in containers
        if container["name"] == worker_protocol.FETCH_MODEL
    ]


def _read_only(mounts: Sequence[Manifest]) -> list[Manifest]:
    return [{**mount, "readOnly": True} for mount in mounts]


def _command(what: str) -> list[str]:
    return ["python", "-m", worker_protocol.MODULE, what]
