"""An RLJob with the cluster's defaults filled in: what every child manifest of the job is rendered from.

`resolve_job` derives the workers' configuration, the volume claims and the credentials issuer once; the modules that
render manifests take the result and derive nothing of it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from rljob_core.config import DownloadConfig, JobConfig
from rljob_core.errors import SpecError
from rljob_core.remote_uri import remote_sources, sources, with_paths
from rljob_core.spec import GRACE_SECONDS, ObjectMeta, PoolSpec, RLJob, RLJobSpec, TrackerSpec
from rljob_operator import names
from rljob_operator.children import storage
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.server_rules import check_server
from rljob_operator.names import Role
from rljob_operator.nats.credentials import Issuer


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

    def nats_url_of(self, pool: PoolSpec | None) -> str:
        """Address of the NATS server that the workers of a pool use; of the other workers, if there is no pool."""
        site = None if pool is None else pool.site
        return self.nats_url if site is None else self.defaults.site_servers.get(site, self.nats_url)

    def claims_of(self, pool: PoolSpec | None) -> tuple[str, ...]:
        """Names of the PersistentVolumeClaims that the workers of a pool mount; as for `nats_url_of`, without a pool.

        Engines at a site mount the model's only: weights come to them over NATS, and the rest is the hub's.
        """
        if pool is None or pool.site is None:
            return self.claims
        return tuple(storage.claims([self.spec.model.uri, _cache_uri(self.spec)]))

    @property
    def written_claims(self) -> tuple[str, ...]:
        """Names of the claims to which trainers and a restore write: not that of the cache, which jobs share."""
        cache = storage.claims([_cache_uri(self.spec)])
        stored = (self.config.weights_uri, self.config.checkpoint_uri, self.config.trainer_log_uri)
        return tuple(
            claim
            for claim in self.claims
            if claim not in cache or any(storage.holds(claim, path) for path in stored)
        )

    @property
    def samples_claims(self) -> tuple[str, ...]:
        """Names of the claims to which reward workers write samples: the checkpoints', if they are on one."""
        return tuple(claim for claim in self.claims if storage.holds(claim, self.config.samples_uri))

    @cached_property
    def config_text(self) -> str:
        """`config` as JSON: the content of the file that the workers load."""
        return self.config.model_dump_json(by_alias=True)

    @cached_property
    def digest(self) -> bytes:
        """A digest of the job and its sites: with the same other defaults, jobs of one digest are resolved equally."""
        defaults = sorted(self.defaults.revisions.items()), self.defaults.admission
        words = f"{self.job.model_dump_json()}{self.site_values}{defaults}"
        return sha256(words.encode()).digest()

    @property
    def unresolved(self) -> frozenset[str]:
        """Names of what is downloaded and has no known revision yet: the coordinator's pod looks for it first."""
        return frozenset(name for name, one in self.config.downloads.items() if not one.revision)

    @property
    def uses_object_store(self) -> bool:
        """Whether workers store anything in an object store."""
        return any(map(self.needs_object_store, Role))

    def needs_object_store(self, role: Role) -> bool:
        """Whether workers of a role read or store anything in an object store, and need its credentials.

        Reward workers do so only where reward functions, which may be a model's code, run in another container.
        """
        config = self.config
        uris = {
            Role.COORDINATOR: (config.weights_uri,),
            Role.ROLLOUT: (config.weights_uri,),
            Role.TRAINER: (config.weights_uri, config.checkpoint_uri, config.trainer_log_uri),
            Role.REWARD: (config.samples_uri,) if self.defaults.containers else (),
        }.get(role, ())
        return any(uri.startswith(storage.OBJECT_STORES) for uri in uris)

    @property
    def site_values(self) -> dict[str, Any]:
        """What is known of the job's sites as JSON values, by site; empty without any."""
        values = {
            site: link.model_dump(mode="json", by_alias=True) for site, link in self.config.links.items()
        }
        for site, seconds in self.config.grace.items():
            values[site] = {**values.get(site, {}), "graceSeconds": seconds}
        return values

    @cached_property
    def spec_values(self) -> dict[str, Any]:
        """The job's spec as JSON values, with the field names of the API."""
        return self.job.spec.model_dump(mode="json", by_alias=True)


def resolve_job(job: RLJob, defaults: ClusterDefaults) -> ResolvedJob:
    """Fill the cluster's defaults into a job.

    Raises:
        SpecError: neither the job nor the cluster names a folder for weights or checkpoints, or both name the same; or
            a tracker's options name a claim or server that cannot be one.
    """
    spec = job.spec
    for number, tracker in enumerate(spec.trackers):
        _check_options(tracker, f"spec.trackers[{number}].options")
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


def _check_options(tracker: TrackerSpec, field: str) -> None:
    """Refuse claims and servers for which the API server would take no pod or NetworkPolicy, and the job would stop."""
    texts = tuple(storage.texts(tracker.options))
    storage.check_claims(texts, field)
    for text in texts:
        if text.startswith(("http://", "https://")):
            check_server(text, field)


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
    folders = {path: f"{storage.path_in_pod(uri).rstrip('/')}{subfolder}" for path, uri in uris.items()}
    checkpoints = folders["spec.trainer.checkpoint.uri"]
    downloads = _downloads(spec, defaults)
    return JobConfig(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        uid=job.metadata.uid or "",
        spec=_with_paths_in_pod(spec, downloads),
        weights_uri=folders.get("spec.weights.uri", ""),
        checkpoint_uri=checkpoints,
        trainer_log_uri=storage.beside(checkpoints, storage.TRAINER_LOG, defaults.trainer_log_uri),
        samples_uri=storage.beside(checkpoints, storage.SAMPLES, defaults.samples_uri)
        if spec.samples.keep_bytes
        else "",
        replicas=_replicas(spec, defaults),
        links={s: defaults.links[s] for s in spec.rollout.sites if s in defaults.links},
        grace={s: defaults.grace[s] for s in spec.rollout.sites if defaults.grace.get(s, 0) > GRACE_SECONDS},
        downloads=downloads,
        download_cache=storage.path_in_pod(spec.model.cache or names.DOWNLOAD_CACHE) if downloads else "",
    )


def _downloads(spec: RLJobSpec, defaults: ClusterDefaults) -> dict[str, DownloadConfig]:
    """What is downloaded, by name."""
    return {
        one.name: DownloadConfig(
            uri=one.uri,
            field=one.field,
            source=one.source,
            revision=defaults.revisions.get(one.name, ""),
            path=f"{names.DOWNLOADS_FOLDER}/{one.name}",
        )
        for one in remote_sources(spec)
    }


def _replicas(spec: RLJobSpec, defaults: ClusterDefaults) -> int:
    """Replicas of a stream that a role creates: where the operator creates them, it asks the server first."""
    if spec.nats.url is None and defaults.nats_replicas is not None:
        return defaults.nats_replicas
    return spec.nats.replicas or 1


def _claims(spec: RLJobSpec, defaults: ClusterDefaults) -> list[str]:
    uris = (
        *(one.uri for one in sources(spec)),
        _cache_uri(spec),
        _weights_uri(spec, defaults),
        spec.trainer.checkpoint.uri or defaults.checkpoint_uri,
    )
    return storage.claims(uris)


def _cache_uri(spec: RLJobSpec) -> str:
    """The job's own cache; empty if it has none, or downloads nothing."""
    return (spec.model.cache or "") if remote_sources(spec) else ""


def _weights_uri(spec: RLJobSpec, defaults: ClusterDefaults) -> str:
    """The folder of weight files; empty if weights travel through NATS."""
    return (spec.weights.uri or defaults.weights_uri) if spec.weights.needs_uri else ""


def _with_paths_in_pod(spec: RLJobSpec, downloads: Mapping[str, DownloadConfig]) -> RLJobSpec:
    """The spec with paths: below mounted claims for `pvc://` URIs, and of links to what is downloaded."""
    paths = {
        one.name: downloads[one.name].path if one.name in downloads else storage.path_in_pod(one.uri)
        for one in sources(spec)
    }
    trackers = [
        tracker.model_copy(update={"options": storage.paths_in_pod(tracker.options)})
        for tracker in spec.trackers
    ]
    return with_paths(spec, paths).model_copy(update={"trackers": trackers})
