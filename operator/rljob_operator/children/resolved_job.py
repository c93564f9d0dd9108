"""An RLJob with the cluster's defaults filled in: what every child manifest of the job is rendered from.

`resolve_job` derives the workers' configuration, the volume claims and the credentials issuer once; the modules that
render manifests take the result and derive nothing of it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import BaseModel

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import ObjectMeta, RLJob, RLJobSpec
from rljob_operator.children import storage
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.nats.credentials import Issuer

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ResolvedJob:
    """A job, the cluster's defaults, and what follows from both.

    Attributes:
        config: the configuration that the job's workers load.
        claims: names of the PersistentVolumeClaims that the workers mount, sorted.
        nats_url: address of the NATS server that the workers use.
        image: container image of the workers.
        issuer: signs the job's NATS credentials; None if the job brings its own credentials or its own server, or if
            the cluster's server does not authenticate clients.
    """

    job: RLJob
    defaults: ClusterDefaults
    config: JobConfig
    claims: tuple[str, ...]
    nats_url: str
    image: str
    issuer: Issuer | None

    @property
    def spec(self) -> RLJobSpec:
        """The job's spec, with URIs as the user wrote them."""
        return self.job.spec

    @property
    def metadata(self) -> ObjectMeta:
        """The job's metadata."""
        return self.job.metadata

    @cached_property
    def config_text(self) -> str:
        """`config` as JSON: the content of the file that the workers load."""
        return self.config.model_dump_json(by_alias=True)

    @cached_property
    def digest(self) -> bytes:
        """A digest of the job itself: with the same defaults, jobs of one digest are resolved equally."""
        return sha256(self.job.model_dump_json().encode()).digest()

    @cached_property
    def spec_values(self) -> dict[str, Any]:
        """The job's spec as JSON values, with the field names of the API."""
        return self.job.spec.model_dump(mode="json", by_alias=True)


def resolve_job(job: RLJob, defaults: ClusterDefaults) -> ResolvedJob:
    """Fill the cluster's defaults into a job.

    Raises:
        SpecError: neither the job nor the cluster names a folder for weights or checkpoints, or both name the same.
    """
    spec = job.spec
    own_access = spec.nats.url is not None or spec.nats.credentials_secret is not None
    return ResolvedJob(
        job=job,
        defaults=defaults,
        config=_config(job, defaults),
        claims=tuple(_claims(spec, defaults)),
        nats_url=spec.nats.url or defaults.nats_url,
        image=spec.image or defaults.image,
        issuer=None if own_access else defaults.issuer,
    )


def checkpoint_uri(job: RLJob, defaults: ClusterDefaults) -> str:
    """The folder of a job's checkpoints, as a URI that another job may name; empty if nothing names a folder."""
    uri = job.spec.trainer.checkpoint.uri or defaults.checkpoint_uri
    return f"{uri.rstrip('/')}{_subfolder(job, defaults)}" if uri else ""


def _subfolder(job: RLJob, defaults: ClusterDefaults) -> str:
    return f"/{job.metadata.name}-{job.metadata.uid}" if defaults.per_job else ""


def _config(job: RLJob, defaults: ClusterDefaults) -> JobConfig:
    """The configuration that a job's workers load: URIs are complete, and paths are those inside the workers' pods."""
    spec = job.spec
    uris = {"spec.trainer.checkpoint.uri": spec.trainer.checkpoint.uri or defaults.checkpoint_uri}
    if spec.weights.needs_uri:
        uris = {"spec.weights.uri": _weights_uri(spec, defaults), **uris}
    for path, uri in uris.items():
        if not uri:
            raise SpecError(
                path, "is needed: write the place that all pods share, such as pvc://claim/folder"
            )
    if len(set(uris.values())) < len(uris):
        raise SpecError("spec.weights.uri", "is the place of checkpoints too: choose another folder for one")
    subfolder = _subfolder(job, defaults)
    folders = {path: f"{storage.path_in_pod(uri)}{subfolder}" for path, uri in uris.items()}
    checkpoints = folders["spec.trainer.checkpoint.uri"]
    return JobConfig(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        uid=job.metadata.uid or "",
        spec=_with_paths_in_pod(spec),
        weights_uri=folders.get("spec.weights.uri", ""),
        checkpoint_uri=checkpoints,
        trainer_log_uri=defaults.trainer_log_uri or f"{checkpoints}/trainer-log",
        replicas=_replicas(spec, defaults),
    )


def _replicas(spec: RLJobSpec, defaults: ClusterDefaults) -> int:
    """Replicas of a stream that a role creates: where the operator creates them, it asks the server first."""
    if spec.nats.url is None and defaults.nats_replicas is not None:
        return defaults.nats_replicas
    return spec.nats.replicas or 1


def _claims(spec: RLJobSpec, defaults: ClusterDefaults) -> list[str]:
    held_out = spec.evaluation.data.dataset if spec.evaluation is not None else None
    uris = (
        spec.model.uri,
        spec.data.dataset,
        held_out or "",
        _weights_uri(spec, defaults),
        spec.trainer.checkpoint.uri or defaults.checkpoint_uri,
    )
    return storage.claims(uris)


def _weights_uri(spec: RLJobSpec, defaults: ClusterDefaults) -> str:
    """The folder of weight files; empty if weights travel through NATS."""
    return (spec.weights.uri or defaults.weights_uri) if spec.weights.needs_uri else ""


def _with_paths_in_pod(spec: RLJobSpec) -> RLJobSpec:
    """The spec with `pvc://` URIs of the model and the data sets replaced by paths below the mounted claims."""

    def replaced(model: Model, field: str) -> Model:
        uri = getattr(model, field)
        return model if uri is None else model.model_copy(update={field: storage.path_in_pod(uri)})

    update: dict[str, object] = {
        "model": replaced(spec.model, "uri"),
        "data": replaced(spec.data, "dataset"),
    }
    if spec.evaluation is not None:
        held_out = replaced(spec.evaluation.data, "dataset")
        update["evaluation"] = spec.evaluation.model_copy(update={"data": held_out})
    return spec.model_copy(update=update)
