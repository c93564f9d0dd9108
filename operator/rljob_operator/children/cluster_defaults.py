"""What a cluster, or a local run folder, decides for every job: servers, storage, image, pod template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_core.spec import SiteLinkSpec
from rljob_operator.children.queue_admission import QueueAdmission
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import Issuer


@dataclass(frozen=True, slots=True)
class ClusterDefaults:
    """Values that apply to every job whose spec does not set its own.

    Attributes:
        nats_url: address of the NATS server.
        weights_uri: folder for weights; empty if each job must name one.
        checkpoint_uri: folder for checkpoints; empty if each job must name one.
        trainer_log_uri: folder for the trainer's log; empty to keep the log beside the checkpoints.
        samples_uri: folder for samples; empty to keep them beside the checkpoints.
        trackers_folder: folder for files of trackers that name none; empty if each must name one.
        image: container image of the workers.
        per_job: whether jobs share the folders above, so that each job gets a subfolder of its own.
        containers: whether a pod can have several containers; where it cannot, reward workers run reward functions in
            child processes of their own.
        issuer: signs the roles' NATS credentials; None if the NATS server does not authenticate clients.
        token_seconds: for how long a role's NATS token is valid.
        gang_seconds: for how long a pod of an elastic trainer may find no node until its gang does without it.
        template: pod template patch applied below every job's own patch; its container `worker` stands for the
            container of each role.
        nats_replicas: number of servers that keep each stream, whatever a job without a server of its own says; None
            if the job says it.
        site_servers: addresses of the NATS servers of sites, by site.
        links: the link of each site that is known, by site.
        grace: seconds for which each site that is known may be away, by site.
        sites: whether a pool with a site is run by the operator of that site, in another cluster.
        metrics_port: port on which workers serve their metrics; 0 if they serve none.
        scraper_namespaces: namespaces whose scrapers may read metrics; none: all.
        revisions: of what this job downloads, as far as they are known, by its name.
        admission: what the queue of this job has admitted; None if it waits in none.
        egress: rules of a NetworkPolicy's egress that hold for every job's workers, besides what the job names.
    """

    nats_url: str
    weights_uri: str
    checkpoint_uri: str
    trainer_log_uri: str
    samples_uri: str = ""
    trackers_folder: str = ""
    image: str = "rljob"
    per_job: bool = False
    containers: bool = False
    issuer: Issuer | None = None
    token_seconds: int = 168 * 3600
    gang_seconds: int = 60
    template: Manifest = field(default_factory=dict)
    nats_replicas: int | None = None
    site_servers: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, SiteLinkSpec] = field(default_factory=dict)
    grace: Mapping[str, int] = field(default_factory=dict)
    sites: bool = False
    metrics_port: int = 0
    scraper_namespaces: tuple[str, ...] = ()
    revisions: Mapping[str, str] = field(default_factory=dict)
    admission: QueueAdmission | None = None
    egress: tuple[Manifest, ...] = ()
