"""The model, the objective, and who optimizes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_core.record_fields import OMITTED_IF_NONE
from rljob_core.spec.base import (
    ApiModel,
    Count,
    Identifier,
    Immutable,
    ObjectName,
    Options,
    PositiveCount,
    Rule,
    Uri,
)
from rljob_core.spec.remote_forms import MODEL_FORM


class LoraSpec(ApiModel):
    """Low-rank adapters on every projection of every decoder layer, instead of full weights."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rank of the adapters: at most the smallest size of a projection in a decoder layer."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapters' output is alpha / rank."""


class ModelSpec(ApiModel):
    """The causal language model to train."""

    uri: Annotated[Uri, Immutable("the job's weights and checkpoints began with this model")]
    """Place of the model, in Hugging Face format: hf://org/name@revision, s3:// or gs://bucket/folder, which are
    downloaded (docs/models-and-data.md); a path or file:// that the pods have, or pvc://claim/path."""
    credentials_secret: ObjectName | None = None
    """Secret whose keys are the variables that the URIs of model, data sets and weights need: HF_TOKEN, or those of an
    object store."""
    cache: Annotated[Uri | None, OMITTED_IF_NONE] = None
    """Where downloads are kept, for all pods of all jobs that name it: pvc://claim/folder, or a path that pods have;
    absent: in each pod (`rljob run`: in RLJOB_CACHE)."""
    lora: Annotated[LoraSpec | None, Immutable("the job's checkpoints hold these adapters")] = None
    """Train low-rank adapters only. They are what is published; engines add them to the model's own weights."""

    rules = (
        MODEL_FORM,
        Rule(
            "cache",
            "!has(self.cache) || !self.cache.contains('://') || self.cache.startsWith('pvc://')",
            "must be pvc://claim/folder, or a path that pods have: downloads are files",
            lambda model: model.cache is None or "://" not in model.cache or model.cache.startswith("pvc://"),
        ),
    )


class AlgorithmSpec(ApiModel):
    """The objective and the optimizer."""

    loss: Identifier = "GRPO"
    """Loss of a token: GRPO, DrGRPO, DAPO, GSPO, CISPO (docs/losses.md says which to use when), or one that
    a distribution in the trainer's image offers."""
    learning_rate: Annotated[float, Field(ge=0, le=10)] = 1e-6
    """Peak learning rate of AdamW."""
    warmup_steps: Count = 0
    """Steps of linear warm-up."""
    learning_rate_schedule: Literal["Constant", "Linear", "Cosine"] = "Constant"
    """How the learning rate falls after the warm-up: not at all, or to minLearningRate at step decaySteps."""
    decay_steps: PositiveCount | None = None
    """The step from which on the learning rate is minLearningRate; usually the value of steps."""
    min_learning_rate: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Learning rate at which the schedules Linear and Cosine end."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this global norm."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range of the probability ratio. GSPO's is of another order: 3e-4."""
    clip_high: Annotated[float, Field(gt=0)] | None = None
    """Upper clip range of the probability ratio; absent: that of clip. For GSPO about 4e-4."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence to the frozen reference (the initial model); 0 loads no reference."""
    importance_sampling: Literal["Truncated", "None"] = "Truncated"
    """Correction for stale data: trainer's over behaviour probability, truncated. CISPO has its own."""
    importance_cap: Annotated[float, Field(gt=0)] = 2.0
    """Upper end of the truncated importance weight."""
    scale_by_std: bool = True
    """Divide group-relative advantages by the group's standard deviation."""
    drop_uniform_groups: bool = False
    """Replace groups whose rewards are all equal by the next prompt."""
    truncated: Literal["Train", "Mask", "Penalise"] = "Train"
    """Answers that sampling.maxTokens cut: Train: like any other. Mask: none of their tokens is trained on, but their
    rewards count in their groups. Penalise: their rewards are truncationPenalty less, except for held-out ones."""
    truncation_penalty: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Reward that truncated: Penalise takes from an answer that was cut."""

    rules = (
        Rule(
            "decaySteps",
            "!has(self.learningRateSchedule) || self.learningRateSchedule == 'Constant' || has(self.decaySteps)",
            "learningRateSchedule Linear and Cosine end at a step: add decaySteps, for instance the value of steps",
            lambda a: a.learning_rate_schedule == "Constant" or a.decay_steps is not None,
        ),
        Rule(
            "decaySteps",
            "!has(self.decaySteps) || !has(self.warmupSteps) || self.decaySteps > self.warmupSteps",
            "the learning rate falls after the warm-up: make decaySteps more than warmupSteps",
            lambda a: a.decay_steps is None or a.decay_steps > a.warmup_steps,
        ),
        Rule(
            "minLearningRate",
            "!has(self.minLearningRate) || !has(self.learningRate) || self.minLearningRate <= self.learningRate",
            "minLearningRate is more than learningRate, the peak: lower it",
            lambda a: a.min_learning_rate <= a.learning_rate,
        ),
    )


class CheckpointSpec(ApiModel):
    """Saved optimizer state and Hugging Face weights."""

    uri: Annotated[Uri | None, Immutable("the job's checkpoints are there")] = None
    """Place of the checkpoints: a path, file://, pvc://claim/path, s3:// or gs://; absent: where the operator keeps
    them (`rljob run`: in the output folder). In an object store, the trainer's log and samples are beside them."""
    every_steps: PositiveCount = 10
    """Steps between checkpoints. 1 makes a trainer's recovery exact; else moments may be that much older."""
    keep_best: bool = False
    """Also keep the checkpoint with the best held-out reward (sampled; of the first held-out set), beside the newest
    two; needs evaluation."""


INTERCHANGEABLE = ("Torch", "FSDP", "DeepSpeed")
"""Trainer backends whose checkpoints are alike."""


class TrainerSpec(ApiModel):
    """Training."""

    backend: Annotated[
        Identifier,
        Immutable(
            "only Torch, FSDP and DeepSpeed continue from each other's checkpoints", among=INTERCHANGEABLE
        ),
    ] = "Torch"
    """Torch (every rank holds all), FSDP or DeepSpeed (divided between the ranks), Emulated (sleeps), or what a
    distribution in the pods' image offers."""
    num_nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    """Pods of the trainer's gang."""
    # Not `numNodes: {min, max}`: a field of a structural schema has one type, and x-kubernetes-int-or-string, its only
    # exception, allows no object. So numNodes stays an integer, which every stored job has.
    min_nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Pods that suffice while there is no room for numNodes; absent: numNodes. The batch stays the same."""
    gang: Literal["Auto", "None", "Workload", "PodGroup", "Volcano"] = "Auto"
    """By which object a cluster's scheduler places all pods of an attempt or none; Auto: what the cluster has, for
    several pods; None: each pod by itself. See docs/gangs.md."""
    num_proc_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Training processes (ranks) in each pod; no more ranks in all than a step has trajectories."""
    micro_batch_tokens: PositiveCount = 16384
    """Tokens of one micro-batch at most (a longer group is one by itself)."""
    options: Options = Field(default={})
    """The backend's own options."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Where and how often state is saved."""
    template: Options | None = None
    """Patch of the trainer's pod template."""
    rules = (
        Rule(
            "minNodes",
            "!has(self.minNodes) || self.minNodes <= self.numNodes",
            "minNodes is more than numNodes: lower it, or raise numNodes, with which the gang starts",
            lambda trainer: trainer.least_nodes <= trainer.num_nodes,
        ),
    )

    @property
    def least_nodes(self) -> int:
        """The fewest nodes that a gang may have."""
        return self.num_nodes if self.min_nodes is None else self.min_nodes
