"""PURE. What the place decides, not the user, and the configuration that follows from both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, RLJobSpec
from rljob_operator.children import storage
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import Issuer

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ClusterDefaults:
    """What the place, not the user, decides. URIs are used where the spec gives none.

    Attributes:
        per_job: the places of weights and checkpoints are shared by many jobs, of which each gets a folder of its own.
        issuer: makes the roles' NATS credentials; None where the site's server asks for none.
        template: a pod template patch laid under every job's own; its container `worker` stands for each role's.
    """

    nats_url: str
    weights_uri: str
    checkpoint_uri: str
    trainer_log_uri: str
    image: str = "rljob"
    per_job: bool = False
    issuer: Issuer | None = None
    template: Manifest = field(default_factory=dict)


def issuer_for(job: RLJob, defaults: ClusterDefaults) -> Issuer | None:
    """Who makes a job's NATS credentials; None if it brings its own, or its server is not the site's."""
    nats = job.spec.nats
    return defaults.issuer if nats.url is None and nats.credentials_secret is None else None


def job_config(job: RLJob, defaults: ClusterDefaults) -> JobConfig:
    """What the workers load: their own view of volumes, whole URIs.

    Raises:
        SpecError: neither the spec nor the site says where weights or checkpoints go.
    """
    spec = job.spec
    given = {"spec.trainer.checkpoint.uri": spec.trainer.checkpoint.uri or defaults.checkpoint_uri}
    if spec.weights.needs_uri:
        given = {"spec.weights.uri": _weights_uri(spec, defaults), **given}
    for path, uri in given.items():
        if not uri:
            raise SpecError(
                path, "is needed: write the place that all pods share, such as pvc://claim/folder"
            )
    if len(set(given.values())) < len(given):
        raise SpecError("spec.weights.uri", "is the place of checkpoints too: choose another folder for one")
    folder = f"/{job.metadata.name}-{job.metadata.uid}" if defaults.per_job else ""
    places = {path: f"{storage.seen_by_worker(uri)}{folder}" for path, uri in given.items()}
    checkpoints = places["spec.trainer.checkpoint.uri"]
    return JobConfig(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        uid=job.metadata.uid or "",
        spec=_seen_by_worker(spec),
        weights_uri=places.get("spec.weights.uri", ""),
        checkpoint_uri=checkpoints,
        trainer_log_uri=defaults.trainer_log_uri or f"{checkpoints}/trainer-log",
    )


def config_text(job: RLJob, defaults: ClusterDefaults) -> str:
    """The `JobConfig` as JSON."""
    return job_config(job, defaults).model_dump_json(by_alias=True)


def job_claims(job: RLJob, defaults: ClusterDefaults) -> list[str]:
    """The claims that a job's workers mount."""
    spec = job.spec
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
    """Where the files of weights are; empty if there are none."""
    return (spec.weights.uri or defaults.weights_uri) if spec.weights.needs_uri else ""


def _seen_by_worker(spec: RLJobSpec) -> RLJobSpec:
    """The spec with paths below mounted claims for what it reads from claims."""

    def moved(model: Model, field: str) -> Model:
        uri = getattr(model, field)
        return model if uri is None else model.model_copy(update={field: storage.seen_by_worker(uri)})

    update: dict[str, object] = {"model": moved(spec.model, "uri"), "data": moved(spec.data, "dataset")}
    if spec.evaluation is not None:
        held_out = moved(spec.evaluation.data, "dataset")
        update["evaluation"] = spec.evaluation.model_copy(update={"data": held_out})
    return spec.model_copy(update=update)
