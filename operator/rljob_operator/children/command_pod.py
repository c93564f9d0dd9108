"""The pod that runs one command on a job, such as its audit: made from the coordinator's."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core import worker_protocol
from rljob_operator.children import storage
from rljob_operator.children.model_download import credentials, with_weights
from rljob_operator.children.nats_credentials import TOKEN_VOLUME, access
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.worker_pod import Patches, pod_template, sibling
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.permissions import Holder


def command_pod(
    job: ResolvedJob, config_map: str, arguments: Sequence[str], *, container: str, holder: Holder
) -> Manifest:
    """The spec of a pod that runs one command and exits: the coordinator's pod with other credentials.

    Args:
        config_map: name of the ConfigMap with the configuration.
        arguments: the command that the pod runs.
        container: name of the container.
        holder: whose credentials it has; the restorer may also write to the job's claims.
    """
    patches = Patches("spec.coordinator.template", job.spec.coordinator.template)
    spec = pod_template(job, Role.COORDINATOR, config_map, patches)["spec"]
    ours = next(c for c in spec["containers"] if c["name"] == Role.COORDINATOR.value)
    nats = access(job, holder)
    coordinators = {worker_protocol.NATS_CREDENTIALS, worker_protocol.NATS_JWT}
    env = [variable for variable in ours["env"] if variable["name"] not in coordinators]
    mounts = [mount for mount in ours["volumeMounts"] if mount["name"] != TOKEN_VOLUME]
    volumes = [volume for volume in spec["volumes"] if volume["name"] != TOKEN_VOLUME]
    if holder is Holder.RESTORER:
        mounts = [_writable(mount, job) for mount in mounts]
    ours = {**ours, "env": env, "volumeMounts": [*mounts, *nats.mounts], "envFrom": credentials(job)}
    only = sibling(ours, container, arguments, nats.variables)
    # The workers' ServiceAccount is deleted when the job ends.
    kept = {field: spec[field] for field in spec if field not in {"initContainers", "serviceAccountName"}}
    fetch = with_weights(spec.get("initContainers", []))
    if (
        fetch and container != "audit"
    ):  # a backup and a restore compare the model with the one that was trained
        kept["initContainers"] = fetch
    return {**kept, "containers": [only], "volumes": [*volumes, *nats.volumes], "restartPolicy": "Never"}


def _writable(mount: Manifest, job: ResolvedJob) -> Manifest:
    """The mount without its protection, if it is one of the job's claims."""
    claims = {storage.mount_path(claim) for claim in job.written_claims}
    return mount if mount["mountPath"] not in claims else {k: v for k, v in mount.items() if k != "readOnly"}
