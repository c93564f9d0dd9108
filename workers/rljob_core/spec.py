"""The RLJob API, group ``rljob.dev``, version ``v1alpha1``: the single source of the CRDs.

Models are strict (``"16"`` is not 16), refuse unknown fields, and read and write camelCase. Every docstring
under a field is that field's description in the CRD. Rules between fields are `Rule` objects: one message,
one CEL expression for the API server and one Python predicate, so that `rljob run` refuses what the CRD
refuses, with the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

GROUP = "rljob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields of one object.

    Attributes:
        cel: the expression that the API server evaluates (`self` is the object).
        message: what is wrong and what to write instead.
        holds: the same predicate over the model.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]


class ApiModel(BaseModel):
    """Base of every object in the API: strict, closed, camelCase."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.message})
        return self


class Mode(StrEnum):
    """How rollout and training overlap."""

    SYNCHRONOUS = "Synchronous"
    STREAMING = "Streaming"
    BOUNDED_ASYNC = "BoundedAsync"


class Inflight(StrEnum):
    """What a running trajectory does when new weights are published."""

    KEEP = "Keep"
    UPDATE = "Update"
    RESTART = "Restart"


# Strict mode takes an enum member only; in a manifest it is a string.
def _enum(kind: type[StrEnum]) -> Any:
    return Annotated[kind, Field(strict=False)]


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.:-]*$", max_length=253)]
Text = Annotated[str, StringConstraints(max_length=65536)]
Uri = Annotated[
    str, StringConstraints(pattern=r"^([a-z][a-z0-9+.-]*://.+|/.+|\.{0,2}[^:]*)$", max_length=2048)
]
Price = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=32)]
Options = dict[str, Any]


class LoraSpec(ApiModel):
    """Low-rank adapters instead of full weights."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rank of the adapters."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapters' output is alpha / rank."""


class ModelSpec(ApiModel):
    """The causal language model to train."""

    uri: Uri
    """Where it is, in Hugging Face format: a path, file://, hf://, s3:// or pvc://claim/path."""
    credentials_secret: Name | None = None
    """Secret with what the URI needs."""
    lora: LoraSpec | None = None
    """Train low-rank adapters only."""


class DataSpec(ApiModel):
    """Where prompts come from."""

    source: Literal["reasoning-gym", "jsonl", "parquet"] = "reasoning-gym"
    """reasoning-gym generates tasks with verifiers; jsonl and parquet read files."""
    dataset: Annotated[str, StringConstraints(max_length=2048)]
    """Name of the reasoning-gym task, or path of the file."""
    options: Options = Field(default_factory=dict)
    """Passed to the source, for instance the task's difficulty."""
    prompt_template: Text | None = "{{ question }}"
    """Jinja over the item's fields and `metadata`; null: the tokenizer's chat template over the item's `messages`
    (or its question)."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65536)] = 16
    """Groups in one training step."""
    group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples of each prompt."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    """Seed of the order of prompts and of the generated tasks."""


class EvaluationDataSpec(ApiModel):
    """Held-out prompts; what is not given is taken from spec.data."""

    source: Literal["reasoning-gym", "jsonl", "parquet"] | None = None
    """As spec.data.source."""
    dataset: Annotated[str, StringConstraints(max_length=2048)] | None = None
    """As spec.data.dataset."""
    options: Options | None = None
    """As spec.data.options."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1_000_003
    """Another seed than spec.data.seed, so that generated tasks are held out."""


class EvaluationSpec(ApiModel):
    """Scores on held-out prompts, outside the staleness buffers."""

    data: EvaluationDataSpec = EvaluationDataSpec()
    """The held-out prompts."""
    every_steps: Annotated[int, Field(ge=1)] = 20
    """Steps between evaluations; the first and the last version are always evaluated."""
    samples: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Prompts in each evaluation, each answered once at spec.rollout.sampling and once greedily."""


class RewardSpec(ApiModel):
    """How trajectories are scored."""

    functions: Annotated[list[Identifier], Field(min_length=1, max_length=16)] = ["exact_match"]
    """Summed up: `verifier` (the data set's own), `exact_match`, `math_verify`, or `package.module:function`."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Reward workers."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """A function that runs longer is ended and its trajectory aborted."""
    template: Options | None = None
    """Patch of the reward workers' pod template."""


class AlgorithmSpec(ApiModel):
    """The objective and the optimizer."""

    name: Literal["GRPO"] = "GRPO"
    """Advantages are group-relative."""
    loss: Literal["GRPO", "DrGRPO", "DAPO"] = "GRPO"
    """How token losses are averaged: per sequence then over sequences (GRPO), by a constant (DrGRPO), over all
    tokens (DAPO)."""
    learning_rate: Annotated[float, Field(ge=0, le=10)] = 1e-6
    """Peak learning rate of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this global norm."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range of the probability ratio."""
    clip_high: Annotated[float, Field(gt=0)] | None = None
    """Upper clip range; the lower one if absent."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence to the frozen reference (the initial model); 0 loads no reference."""
    importance_sampling: Literal["Truncated", "None"] = "Truncated"
    """Correction for stale data: trainer's over behaviour probability, truncated."""
    importance_cap: Annotated[float, Field(gt=0)] = 2.0
    """Upper end of the truncated importance weight."""
    scale_by_std: bool = True
    """Divide group-relative advantages by the group's standard deviation."""
    drop_uniform_groups: bool = False
    """Replace groups whose rewards are all equal by the next prompt."""


class PipelineSpec(ApiModel):
    """The protocol's settings."""

    mode: _enum(Mode) = Mode.BOUNDED_ASYNC  # type: ignore[valid-type]
    """Synchronous, Streaming (on-policy, the trainer starts on the first micro-batch) or BoundedAsync."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] | None = None
    """η: versions by which a consumed trajectory may be behind; 0 unless BoundedAsync, whose default is 1."""
    inflight: _enum(Inflight) = Inflight.UPDATE  # type: ignore[valid-type]
    """What running trajectories do at new weights: go on under them, keep theirs to the end, or restart."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Generations of one sibling that may fail before its prompt is given up."""
    max_resamples: Annotated[int, Field(ge=0, le=65536)] = 16
    """Uniform groups replaced per step; past it they are used with zero advantage."""

    rules = (
        Rule(
            "self.mode == 'BoundedAsync' || !has(self.maxStaleness) || self.maxStaleness == 0",
            "maxStaleness must be 0 with mode Synchronous or Streaming: remove it, or set mode to BoundedAsync",
            lambda s: s.mode == Mode.BOUNDED_ASYNC or not s.max_staleness,
        ),
        Rule(
            "self.mode != 'BoundedAsync' || !has(self.maxStaleness) || self.maxStaleness >= 1",
            "maxStaleness must be at least 1 with mode BoundedAsync: raise it, or set mode to Streaming",
            lambda s: s.mode != Mode.BOUNDED_ASYNC or s.max_staleness is None or s.max_staleness >= 1,
        ),
    )

    @property
    def bound(self) -> int:
        """η with its default filled in."""
        if self.max_staleness is not None:
            return self.max_staleness
        return 1 if self.mode == Mode.BOUNDED_ASYNC else 0


class SamplingSpec(ApiModel):
    """How tokens are drawn."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Divides the logits."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus: draw from the smallest set of tokens with this probability."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 512
    """Tokens of a response at most."""
    stop: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)
    ] = []
    """Strings that end a response (besides the end-of-sequence token)."""


class EngineSpec(ApiModel):
    """What generates."""

    name: Identifier = "Torch"
    """Torch (Hugging Face models, also on a CPU) or Emulated (sleeps by a profile)."""
    options: Options = Field(default_factory=dict)
    """The engine's own options."""


class PoolEngineSpec(ApiModel):
    """A pool's changes to spec.rollout.engine."""

    options: Options = Field(default_factory=dict)
    """Laid over spec.rollout.engine.options."""


class EnvironmentSpec(ApiModel):
    """A multi-turn environment."""

    name: Identifier
    """Entry point of the environment."""
    options: Options = Field(default_factory=dict)
    """The environment's own options."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 1
    """Model turns at most."""


class ScalingSpec(ApiModel):
    """Who sets the number of replicas."""

    policy: Literal["External"] = "External"
    """External: an HPA, KEDA or a person scales the RolloutPool."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Replicas at least; the pool starts there."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Replicas at most."""

    rules = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
        ),
    )


class PoolSpec(ApiModel):
    """Engines of one kind in one place."""

    name: Name
    """Unique among the job's pools."""
    datacenter: Name | None = None
    """The site it runs in."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Engines; 1 if neither this nor scaling is given."""
    scaling: ScalingSpec | None = None
    """Instead of replicas: who sets their number."""
    hosts: Annotated[int, Field(ge=1, le=1)] = 1
    """Pods that one engine spans."""
    engine: PoolEngineSpec = PoolEngineSpec()
    """Changes to spec.rollout.engine."""
    cost_per_hour: Price | None = None
    """Price of one replica, in any currency."""
    template: Options | None = None
    """Patch of the pool's pod template, merged by container name."""

    rules = (
        Rule(
            "!(has(self.replicas) && has(self.scaling))",
            "replicas and scaling exclude each other: keep replicas for a fixed number, or scaling to let an "
            "autoscaler set it",
            lambda s: s.replicas is None or s.scaling is None,
        ),
    )

    @property
    def initial_replicas(self) -> int:
        """Replicas that the pool starts with."""
        if self.scaling is not None:
            return self.scaling.min_replicas
        return 1 if self.replicas is None else self.replicas


class RolloutSpec(ApiModel):
    """Generation."""

    engine: EngineSpec = EngineSpec()
    """What generates, for all pools."""
    environment: EnvironmentSpec | None = None
    """A multi-turn environment; absent for single-turn."""
    sampling: SamplingSpec = SamplingSpec()
    """How tokens are drawn."""
    pools: Annotated[
        list[PoolSpec], Field(min_length=1, max_length=64, json_schema_extra={"listMapKey": "name"})
    ]
    """At least one."""

    rules = (
        Rule(
            "self.pools.all(p, self.pools.exists_one(q, q.name == p.name))",
            "pool names must differ",
            lambda s: len({p.name for p in s.pools}) == len(s.pools),
        ),
    )


class CheckpointSpec(ApiModel):
    """Saved optimizer state and Hugging Face weights."""

    uri: Uri | None = None
    """Where; `rljob run` puts it into the output folder if absent."""
    every_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between checkpoints. 1 makes a trainer's recovery exact; else moments may be that much older."""


class TrainerSpec(ApiModel):
    """Training."""

    backend: Identifier = "Torch"
    """Torch (data-parallel, also on a CPU) or Emulated (sleeps)."""
    num_nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    """Pods of the gang."""
    num_proc_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Ranks in each pod."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16384
    """Tokens of one micro-batch at most (a longer group is one by itself)."""
    options: Options = Field(default_factory=dict)
    """The backend's own options."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Where and how often state is saved."""
    template: Options | None = None
    """Patch of the trainer's pod template."""


class CoordinatorSpec(ApiModel):
    """The coordinator."""

    template: Options | None = None
    """Patch of the coordinator's pod template."""


class WeightsSpec(ApiModel):
    """How weights reach engines."""

    transport: Literal["Files"] = "Files"
    """Files: a folder or object store that trainer and engines share."""
    uri: Uri | None = None
    """Where; `rljob run` puts it into the output folder if absent."""
    keep_versions: Annotated[int, Field(ge=0)] | None = None
    """Versions kept besides those that the bound and recovery need; none if absent."""


class NatsSpec(ApiModel):
    """The NATS server that carries the job's streams."""

    url: Annotated[str, StringConstraints(pattern=r"^(nats|tls|ws|wss)://.+$", max_length=2048)] | None = None
    """Server to use; `rljob run` starts its own if absent."""
    credentials_secret: Name | None = None
    """Secret with the server's credentials."""


class RLJobSpec(ApiModel):
    """What the user wants trained, how, and where."""

    suspend: bool = False
    """Stop all pods and keep the state."""
    managed_by: Annotated[str, StringConstraints(max_length=253)] = "rljob.dev/operator"
    """Who reconciles this job; immutable."""
    image: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Image of all roles; the operator's default if absent."""
    image_pull_secrets: Annotated[list[Name], Field(max_length=16)] = []
    """Secrets to pull it with."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Optimizer steps."""
    model: ModelSpec
    """The model to train."""
    data: DataSpec
    """Where prompts come from."""
    evaluation: EvaluationSpec | None = None
    """Scores on held-out prompts."""
    reward: RewardSpec = RewardSpec()
    """How trajectories are scored."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """The objective and the optimizer."""
    pipeline: PipelineSpec = PipelineSpec()
    """The protocol's settings."""
    rollout: RolloutSpec
    """Generation."""
    trainer: TrainerSpec = TrainerSpec()
    """Training."""
    coordinator: CoordinatorSpec = CoordinatorSpec()
    """The coordinator."""
    weights: WeightsSpec = WeightsSpec()
    """How weights reach engines."""
    nats: NatsSpec = NatsSpec()
    """The NATS server."""
    trackers: Annotated[list[Identifier], Field(max_length=8)] = []
    """Experiment trackers."""
    backoff_limit: Annotated[int, Field(ge=0, le=1000)] = 3
    """Failed trainer attempts before the job fails."""
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    """Seconds after which the job fails."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Seconds after which a finished job is deleted."""


class ConditionStatus(ApiModel):
    """One condition, as `metav1.Condition`."""

    type: str
    """CamelCase name."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str
    """CamelCase cause of the last change."""
    message: str = ""
    """For a person."""
    observed_generation: int | None = None
    """Generation that it was computed for."""
    last_transition_time: str | None = None
    """RFC 3339 time at which status last changed."""


class PoolStatus(ApiModel):
    """Counts of one pool."""

    name: Name
    """The pool."""
    replicas: int = 0
    """Engines wanted."""
    ready_replicas: int = 0
    """Engines that serve an admissible version."""


class RLJobStatus(ApiModel):
    """What is."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: list[ConditionStatus] = []
    """Ready, Suspended, Succeeded, Failed, TrainerStarved, RolloutStarved, Reconciling, Stalled."""
    step: int = 0
    """Committed steps."""
    policy_version: int = 0
    """Newest committed version."""
    trainer_attempt: int = 0
    """Current attempt of the trainer gang."""
    failures: int = 0
    """Trainer attempts that failed and count against backoffLimit."""
    reward_mean: float | None = None
    """Mean reward of the last step."""
    staleness_max: int | None = None
    """Largest staleness consumed."""
    staleness_mean: float | None = None
    """Mean staleness consumed."""
    tokens_per_second: float | None = None
    """Generated tokens per second."""
    pools: list[PoolStatus] = []
    """Counts per pool."""


class ObjectMeta(BaseModel):
    """The part of Kubernetes' object metadata that we read; the rest is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=52)]
    namespace: Annotated[str, StringConstraints(max_length=63)] = "default"
    uid: str | None = None
    generation: int | None = None


class RLJob(ApiModel):
    """A reinforcement-learning job."""

    api_version: Literal["rljob.dev/v1alpha1"]
    """rljob.dev/v1alpha1"""
    kind: Literal["RLJob"]
    """RLJob"""
    metadata: ObjectMeta
    """Kubernetes' object metadata."""
    spec: RLJobSpec
    """What the user wants."""
    status: RLJobStatus | None = None
    """What is; written by the operator."""
