"""RLJob: the resource that a user creates for one training run."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_core.record_fields import OMITTED_IF_EMPTY
from rljob_core.spec.base import (
    ApiModel,
    ControllerName,
    Count,
    Form,
    Grows,
    Identifier,
    Image,
    Immutable,
    Namespace,
    ObjectMeta,
    ObjectName,
    Options,
    PositiveCount,
    Rule,
    Uri,
)
from rljob_core.spec.data import ENVIRONMENT_SCORE, DataSpec, EvaluationSpec, RewardSpec
from rljob_core.spec.pipeline import PipelineSpec
from rljob_core.spec.remote_forms import ONE_SCHEME, one_scheme
from rljob_core.spec.rollout import RolloutSpec
from rljob_core.spec.status import RLJobStatus
from rljob_core.spec.training import AlgorithmSpec, ModelSpec, TrainerSpec
from rljob_core.weight_transports import WEIGHT_TRANSPORTS, WeightTransportName

_NUMBER = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

Cidr = Annotated[
    str,
    StringConstraints(max_length=43),
    Form(
        rf"^({_NUMBER}(\.{_NUMBER}){{3}}/(3[0-2]|[12]?[0-9])|[0-9a-f:]*:[0-9a-f:]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$",
        "must be a range of addresses: for instance 10.1.0.0/16, or 192.0.2.7/32 for one address",
    ),
]
Port = Annotated[int, Field(ge=1, le=65_535)]


def _is_range(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


class EgressSpec(ApiModel):
    """A place that workers may connect to."""

    cidr: Cidr | None = None
    """Range of addresses, inside or outside the cluster. 0.0.0.0/0: anywhere."""
    namespace: Namespace | None = None
    """All pods of this namespace, also behind its Services."""
    ports: Annotated[list[Port], Field(max_length=16)] = Field(default=[])
    """TCP ports, as pods and servers listen on them (not a Service's own); absent: any port and protocol."""

    rules = (
        Rule(
            "cidr",
            "has(self.cidr) != has(self.namespace)",
            "cidr or namespace must say where, and only one of them: write two entries for two places",
            lambda place: (place.cidr is None) != (place.namespace is None),
        ),
        Rule(
            "cidr",
            "!has(self.cidr) || isCIDR(self.cidr)",
            "cidr has numbers and colons that are not an address: write a range such as fd00:10::/32",
            lambda place: place.cidr is None or _is_range(place.cidr),
        ),
    )


class NetworkingSpec(ApiModel):
    """What workers may connect to."""

    egress: Annotated[list[EgressSpec], Field(max_length=32)] = Field(default=[])
    """Places besides NATS, DNS, the object stores and servers that the spec names, and what the cluster's
    administrator allows every job."""


MOST_TRACKERS = 8
"""Trackers that a job may name."""


class TrackerSpec(ApiModel):
    """An experiment tracker, to which a process beside the coordinator sends the job's metrics."""

    name: Identifier
    """WandB, MLflow, TensorBoard, Trackio, or what a distribution in the pods' image offers; each of them once."""
    options: Options = Field(default={})
    """The tracker's own options. A value may be pvc://claim/folder; the claim is then mounted."""
    samples: Annotated[int, Field(ge=0, le=100), OMITTED_IF_EMPTY] = 0
    """Groups of samples in the table that it gets of each evaluation, and of training about once a minute: prompts and
    answers. 0: none. On a cluster, its pod can then read the claim of the checkpoints."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Seconds that the tracker may take to store metrics; after that its process is started again."""
    image: Image | None = None
    """Image of the tracker's process, with rljob and the tracker's package; absent: the job's."""
    credentials_secret: ObjectName | None = None
    """Secret whose keys become environment variables of the tracker's process, such as WANDB_API_KEY. rljob run passes
    the variables of your shell."""


class SamplesSpec(ApiModel):
    """Answers that are kept beside the checkpoints, with their tokens and scores, for `rljob samples`."""

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Part of the training groups that is kept, besides all evaluations; absent: as many as have about a million tokens
    in a step, in a small job all."""
    keep_bytes: Annotated[int, Field(ge=0, le=2**50)] = 2**30
    """Bytes of samples that are kept: the oldest are deleted, those of training first. 0 keeps no samples."""


_ANCHOR_EVERY_AT_SITES = 100
"""Of versions that cross links. What bounds the bytes is that no more deltas follow an anchor than it has bytes; this
bounds how many messages a new engine reads.
"""


class CoordinatorSpec(ApiModel):
    """The coordinator."""

    template: Options | None = None
    """Patch of the coordinator's pod template."""


class DeltaSpec(ApiModel):
    """Versions stored as what changed since the one before, bit by bit."""

    anchor_every: Annotated[int, Field(ge=1, le=1000)] = 10
    """At least every so many versions one is stored whole: the anchor that the deltas after it rest on. A new engine
    reads it and all of them. 1: every version is whole."""


def _has_no_uri(transport: WeightTransportName) -> Rule:
    """The rule that refuses `uri` beside a transport that would not use it."""
    return Rule(
        "uri",
        f"self.transport != '{transport}' || !has(self.uri)",
        f"{transport} keeps the weights in {WEIGHT_TRANSPORTS[transport].keeps_them_in}: remove uri, "
        "or use transport Files",
        lambda spec: spec.transport != transport or spec.uri is None,
    )


class WeightsSpec(ApiModel):
    """How weights reach engines."""

    transport: Annotated[
        WeightTransportName,
        Immutable("the job's weights are there"),
        Field(description=" ".join(f"{name}: {row.summary}." for name, row in WEIGHT_TRANSPORTS.items())),
    ] = "Files"
    uri: Annotated[Uri | None, Immutable("the job's weights are there")] = None
    """Place of the weights with transport Files: a path, file://, pvc://claim/path, s3:// or gs://; absent: where the
    operator keeps them (`rljob run`: in the output folder)."""
    keep_versions: Count | None = None
    """Versions kept besides those that the bound and recovery need; none if absent."""
    delta: DeltaSpec | None = None
    """Whether only what changed between versions is stored; absent: only for pools at other sites. Trainer and engines
    then hold one more copy of the weights, in host memory."""

    rules = tuple(_has_no_uri(name) for name, row in WEIGHT_TRANSPORTS.items() if not row.needs_uri)

    @property
    def needs_uri(self) -> bool:
        """Whether the transport keeps weights at a URI; if the job gives none, the operator's is used."""
        return WEIGHT_TRANSPORTS[self.transport].needs_uri


class NatsSpec(ApiModel):
    """The NATS server that carries the job's streams."""

    url: Annotated[
        Annotated[
            str,
            StringConstraints(max_length=2048),
            Form(
                r"^(nats|tls|ws|wss)://\S+$",
                "must be the URL of a NATS server: for instance nats://nats:4222",
            ),
        ]
        | None,
        Immutable("the job's ledger and trajectories are there"),
    ] = None
    """Server to use, or several of a cluster with commas between, all with the same scheme; absent: the operator's, or
    `rljob run`'s own."""
    credentials_secret: ObjectName | None = None
    """Secret with the server's credentials."""
    replicas: Annotated[int, Field(ge=1, le=5)] | None = None
    """Servers that keep each of the job's streams: 1, 3 or 5; absent: 3 if the operator's server is a cluster of three
    or more, else 1. `rljob run` without `url` keeps 1."""
    credentials_generation: Annotated[
        int, Field(ge=0, le=1_000_000), Grows("credentials that were revoked would be valid again")
    ] = 0
    """Number whose increase revokes all credentials that the operator has issued for this job: its pods get new
    ones."""

    rules = (
        Rule(
            "url",
            # Not of each server: the API server would count a comparison for each character, and refuse the rule.
            "!has(self.url) || self.url.split(',').size() == "
            "self.url.split(',' + self.url.split('://')[0] + '://').size()",
            f"url {ONE_SCHEME}",
            lambda nats: nats.url is None or one_scheme(nats.url),
        ),
        Rule(
            "replicas",
            "!has(self.replicas) || self.replicas % 2 == 1",
            "replicas must be 1, 3 or 5: an even number survives no more deaths than the odd one below it",
            lambda nats: nats.replicas is None or nats.replicas % 2 == 1,
        ),
    )


_SCORED_BY_ENVIRONMENT = (
    f"has(self.reward) && has(self.reward.functions) && '{ENVIRONMENT_SCORE}' in self.reward.functions"
)


class RLJobSpec(ApiModel):
    """What the user wants trained, how, and where."""

    suspend: bool = False
    """Stop all pods and keep the state; false continues from there."""
    managed_by: Annotated[
        ControllerName,
        Immutable("two controllers would undo each other's work"),
    ] = "rljob.dev/operator"
    """Who reconciles this job."""
    image: Image | None = None
    """Image of all roles; the operator's default if absent."""
    image_pull_secrets: Annotated[list[ObjectName], Field(max_length=16)] = Field(default=[])
    """Secrets with which the image is pulled."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Optimizer steps that the job trains."""
    model: ModelSpec
    """The model to train."""
    data: Annotated[DataSpec, Immutable("the ledger numbers the prompts of this data")]
    """Where prompts come from."""
    evaluation: EvaluationSpec | None = None
    """Scores on held-out prompts."""
    reward: RewardSpec = RewardSpec()
    """How trajectories are scored."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """The objective and the optimizer."""
    pipeline: PipelineSpec = PipelineSpec()
    """How generation and training overlap, and how far the one may run ahead of the other."""
    rollout: RolloutSpec
    """What generates trajectories, how, and on which pools."""
    trainer: TrainerSpec = TrainerSpec()
    """What trains, with how many processes, and where its checkpoints go."""
    coordinator: CoordinatorSpec = CoordinatorSpec()
    """The process that plans the steps and keeps the ledger."""
    weights: WeightsSpec = WeightsSpec()
    """How weights reach engines."""
    samples: SamplesSpec = SamplesSpec()
    """Which answers are kept for people to read."""
    nats: NatsSpec = NatsSpec()
    """The NATS server that carries the job's streams."""
    networking: NetworkingSpec = NetworkingSpec()
    """What workers may connect to besides what the spec names, where the cluster enforces NetworkPolicies."""
    trackers: Annotated[
        list[TrackerSpec], Field(max_length=MOST_TRACKERS, json_schema_extra={"listMapKey": "name"})
    ] = Field(default=[])
    """Experiment trackers that get the job's metrics. One that fails never slows or ends the job."""
    backoff_limit: Annotated[int, Field(ge=0, le=1000)] = 3
    """Failed trainer attempts before the job fails."""
    active_deadline_seconds: PositiveCount | None = None
    """Seconds after which the job fails."""
    ttl_seconds_after_finished: Count | None = None
    """Seconds after which a finished job is deleted."""

    rules = (
        Rule(
            "trackers",
            "!has(self.trackers) || self.trackers.all(t, self.trackers.exists_one(u, u.name == t.name))",
            "two trackers have the same name: remove one of them",
            lambda s: len({t.name for t in s.trackers}) == len(s.trackers),
        ),
        Rule(
            "weights.transport",
            "!has(self.weights) || !has(self.weights.uri) || !self.weights.uri.matches('^(s3|gs|pvc)://') || "
            "!self.rollout.pools.exists(pool, has(pool.site))",
            "each engine at another site would read all weights over its link: use transport Nats, of which a site "
            "gets one copy, or leave the pools' site out",
            lambda s: not (s.rollout.sites and _is_far(s.weights.uri)),
        ),
        Rule(
            "trainer.checkpoint.keepBest",
            "!has(self.trainer) || !has(self.trainer.checkpoint) || !has(self.trainer.checkpoint.keepBest) || "
            "!self.trainer.checkpoint.keepBest || has(self.evaluation)",
            "the best checkpoint is that of the best held-out reward: add evaluation, or remove keepBest",
            lambda s: not s.trainer.checkpoint.keep_best or s.evaluation is not None,
        ),
        Rule(
            "reward.functions",
            f"!has(self.rollout.environment) || {_SCORED_BY_ENVIRONMENT}",
            f"an episode has the score that its environment gives it: add {ENVIRONMENT_SCORE}, alone or beside others",
            lambda s: s.rollout.environment is None or ENVIRONMENT_SCORE in s.reward.functions,
        ),
        Rule(
            "reward.functions",
            f"has(self.rollout.environment) || !({_SCORED_BY_ENVIRONMENT})",
            f"{ENVIRONMENT_SCORE} is the score of spec.rollout.environment, which the job has not: add it, or remove "
            f"{ENVIRONMENT_SCORE}",
            lambda s: s.rollout.environment is not None or ENVIRONMENT_SCORE not in s.reward.functions,
        ),
    )

    @property
    def anchor_every(self) -> int | None:
        """At least every so many versions one is whole; None if all are.

        Where sites have copies of the weights, versions are deltas if the job does not say otherwise.
        """
        if self.weights.delta is not None:
            return self.weights.delta.anchor_every
        has_copies = bool(self.rollout.sites) and not self.weights.needs_uri
        return _ANCHOR_EVERY_AT_SITES if has_copies else None


def _is_far(uri: str | None) -> bool:
    """Whether a place of weights is not the machine itself, on which `rljob run` has all sites."""
    return uri is not None and uri.startswith(("s3://", "gs://", "pvc://"))


class RLJob(ApiModel):
    """A reinforcement-learning job."""

    api_version: Literal["rljob.dev/v1alpha1"]
    """rljob.dev/v1alpha1"""
    kind: Literal["RLJob"]
    """RLJob"""
    metadata: ObjectMeta
    """Kubernetes' object metadata."""
    spec: RLJobSpec
    """What to train, how, and where."""
    status: RLJobStatus | None = None
    """Observed state, written by the operator."""
