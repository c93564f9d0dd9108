"""`spec.rollout`: the engines that generate trajectories, their pools and scaling, and how tokens are sampled."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_core.record_fields import OMITTED_IF_NONE
from rljob_core.spec.base import (
    HUB,
    ApiModel,
    Identifier,
    Image,
    Immutable,
    Name,
    Options,
    PositiveCount,
    Price,
    Rule,
    enum_field,
)

MOST_TURNS = 500
"""Responses of an episode that a job may allow at most: a trajectory of so many has 1,000 segments, of 1,024."""
CHANGEABLE_OF_ENVIRONMENT = ("replicas", "image", "template", "episodesPerSlot")
"""Fields of an environment that say where and how many of its episodes run, and nothing of what it does."""
AGENT = "agent"
"""The environment that is a program of the user's, which speaks OpenAI's chat completions."""


class EnvironmentSpec(ApiModel):
    """A multi-turn environment."""

    name: Identifier
    """`package.module:Class`, what an installed distribution offers, or `agent`: a program of your own."""
    options: Options = Field(default={})
    """The environment's own options."""
    max_turns: Annotated[int, Field(ge=1, le=MOST_TURNS)] = 10
    """Responses of the model in one episode at most."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds that one call of the environment may take; then its process is ended, and the attempt has failed."""
    episode_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Seconds from an episode's first response to its end, later responses included; then the attempt has failed."""
    episodes_per_slot: Annotated[float, Field(ge=1, le=64)] = 2.0
    """Episodes that an engine may have open for each of its slots. Those beyond 1 use the slots of others that wait for
    their environment; with 1, an episode keeps its slot to its end."""
    network: bool = False
    """Whether the environment may open network connections."""
    replicas: Annotated[int, Field(ge=0, le=1024)] = 1
    """Pods that play episodes, on a cluster; while there is none, episodes wait. Under `rljob run` each engine has a
    server of its own."""
    image: Image | None = None
    """Image of the environment's pods, with the workers' package and the environment; absent: the job's."""
    template: Options | None = None
    """Patch of the environment pods' template; episodes run in its container `environment`."""

    @property
    def own_loopback(self) -> bool:
        """Whether each episode has a network of its own, in which its processes speak to each other and to nobody."""
        return self.name == AGENT and not self.network


LONGEST_RESPONSE = 1_048_576
"""Tokens of a response that a job may allow at most."""


class SamplingSpec(ApiModel):
    """How tokens are drawn."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature, by which logits are divided."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: tokens are drawn from the smallest set with this probability."""
    max_tokens: Annotated[int, Field(ge=1, le=LONGEST_RESPONSE)] = 512
    """Tokens of a response at most; of an episode of an environment, all that follow its prompt."""
    stop: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)
    ] = Field(default=[])
    """Strings that end a response (besides the end-of-sequence token), which keeps them. They are looked for in its
    text without special tokens."""


class EngineSpec(ApiModel):
    """What generates."""

    name: Identifier = "Torch"
    """Torch (Hugging Face models, also on a CPU), vLLM, HTTP (a completions server), Emulated (sleeps by a profile), or
    what a distribution in the pods' image offers."""
    options: Options = Field(default={})
    """The engine's own options."""


class PoolEngineSpec(ApiModel):
    """A pool's changes to spec.rollout.engine."""

    options: Options = Field(default={})
    """Options of this pool's engines, laid over spec.rollout.engine.options."""


class LengthPredictorSpec(ApiModel):
    """What estimates how long answers will be."""

    name: Identifier = "Ridge"
    """Ridge (learns from the texts of this job's prompts), PromptMeans (means of a prompt's earlier answers), or what a
    distribution in the coordinator's image offers."""
    options: Options = Field(default={})
    """The predictor's own options."""


class ScalingSpec(ApiModel):
    """Who sets the number of replicas."""

    policy: Literal["External", "Internal"] = "External"
    """External: an HPA, KEDA or a person scales the RolloutPool. Internal: the operator does, by what the trainer needs
    and what engines cost (spec.rollout.autoscaling)."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Least number of engines, with which the pool starts; with policy Internal it starts with one at least."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Largest number of engines."""
    owner: Literal["Hub", "Site"] = "Hub"
    """Hub: the pool is scaled where its RLJob is. Site, of a pool with a site and policy External: it is scaled
    in the site's cluster, by an HPA, KEDA or kubectl scale there, and the hub's RolloutPool follows."""

    rules = (
        Rule(
            "minReplicas",
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas (1 if absent): lower it, or raise maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
        ),
    )

    def bound(self, replicas: int) -> int:
        """The nearest number of engines that is allowed."""
        return min(max(replicas, self.min_replicas), self.max_replicas)


class AutoscalingSpec(ApiModel):
    """What pools of scaling policy Internal are scaled for."""

    budget_per_hour: Price | None = None
    """What the engines of all pools may cost in an hour, as text, in the currency of costPerHour; absent: anything."""
    deadline_seconds: PositiveCount | None = None
    """Seconds after its start in which the job should have trained all steps: engines are added for it, within their
    bounds and the budget. Unlike activeDeadlineSeconds it ends nothing."""
    trainer_waiting: Annotated[float, Field(ge=0, le=0.9)] = 0.03
    """Share of its time for which the trainer may wait for trajectories. More of it needs fewer engines."""
    stabilization_window_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """Seconds between changes, unless the trainer waits for 9 % of its time more than it may."""


class PoolSpec(ApiModel):
    """Engines of one kind in one place."""

    name: Name
    """Name of the pool, unique in the job."""
    site: Annotated[
        Name | None,
        Immutable("a pool stays where it is", "add another pool and remove this one"),
    ] = None
    """Name of the Site at which the pool runs, with a NATS server of its own; absent: where the job's other processes
    are. rljob run starts a server for each on this machine."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Number of engines; 1 if neither this nor scaling is given."""
    scaling: ScalingSpec | None = None
    """Instead of replicas: who sets the number of engines, and within which bounds."""
    engine: PoolEngineSpec = PoolEngineSpec()
    """What differs from spec.rollout.engine in this pool."""
    cost_per_hour: Price | None = None
    """Price of one engine for an hour in any currency, as text: "2.10". status.cost adds prices up, and scaling policy
    Internal prefers what is cheap."""
    interruptions_per_hour: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """How often one engine is taken away in an hour, as spot machines are; scaling policy Internal then counts on less
    of it."""
    template: Options | None = None
    """Patch of the pool's pod template, merged by container name."""

    rules = (
        Rule(
            "scaling",
            "!(has(self.replicas) && has(self.scaling))",
            "replicas and scaling exclude each other: keep replicas for a fixed number, or scaling to let an "
            "autoscaler set it",
            lambda s: s.replicas is None or s.scaling is None,
        ),
        Rule(
            "site",
            f"!has(self.site) || self.site != '{HUB}'",
            f"{HUB} is where the job's other processes are: leave site out",
            lambda s: s.site != HUB,
        ),
        Rule(
            "costPerHour",
            "!has(self.scaling) || self.scaling.policy != 'Internal' || has(self.costPerHour)",
            'scaling policy Internal chooses by price: add costPerHour, such as "2.10", or "1" if all cost the same',
            lambda s: s.scaling is None or s.scaling.policy != "Internal" or s.cost_per_hour is not None,
        ),
        Rule(
            "scaling",
            "!has(self.scaling) || self.scaling.owner != 'Site' || "
            "(has(self.site) && self.scaling.policy == 'External')",
            "scaling.owner Site is for pools of scaling policy External that are at a Site: add site and leave "
            "policy out, or leave owner out",
            lambda s: (
                s.scaling is None
                or s.scaling.owner != "Site"
                or (s.site is not None and s.scaling.policy == "External")
            ),
        ),
    )

    @property
    def scaled_internally(self) -> bool:
        """Whether the operator chooses the number of engines."""
        return self.scaling is not None and self.scaling.policy == "Internal"

    @property
    def scaled_at_site(self) -> bool:
        """Whether the number of engines is set in the cluster of the pool's Site."""
        return self.scaling is not None and self.scaling.owner == "Site"

    @property
    def initial_replicas(self) -> int:
        """Replicas that the pool starts with."""
        if self.scaling is not None:
            least = 1 if self.scaled_internally else 0  # which shows how fast it is
            return max(self.scaling.min_replicas, least)
        return 1 if self.replicas is None else self.replicas

    @property
    def most_replicas(self) -> int:
        """Number of engines that this pool may have."""
        return self.initial_replicas if self.scaling is None else self.scaling.max_replicas

    def within_bounds(self, replicas: int) -> int:
        """The number of engines that the pool gets when somebody wants that many."""
        return replicas if self.scaling is None else self.scaling.bound(replicas)


class SwapTime(StrEnum):
    """When an engine takes new weights."""

    AUTO = "Auto"
    AT_ONCE = "AtOnce"
    WHEN_NEEDED = "WhenNeeded"


class RolloutSpec(ApiModel):
    """Generation."""

    engine: EngineSpec = EngineSpec()
    """What generates, for all pools."""
    length_predictor: LengthPredictorSpec = LengthPredictorSpec()
    """What estimates how long answers will be, for the order in which they are generated. Its estimates are used only
    while they order prompts well."""
    environment: Annotated[
        EnvironmentSpec | None,
        Immutable("rewards are compared over the whole run", excepting=CHANGEABLE_OF_ENVIRONMENT),
        OMITTED_IF_NONE,
    ] = None
    """What answers each response of the model, until the episode ends."""
    sampling: SamplingSpec = SamplingSpec()
    """How tokens are drawn."""
    progress_tokens: Annotated[int, Field(ge=0, le=1_048_576)] = 512
    """Tokens of a response after which its progress is published, from which another engine continues; an engine that
    is drained publishes all of it. 0: what a lost engine was generating starts over."""
    hang_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Seconds without a new token after which an engine with responses to generate is ended, like one that has died.
    Longer than any prefill or swap of weights. An engine that pauses for much less is ended sooner."""
    weight_sync: enum_field(SwapTime) = SwapTime.AUTO  # type: ignore[valid-type]
    """When an engine takes announced weights. AtOnce. WhenNeeded: once what it has been given needs newer ones than its
    own, or it is idle. Auto: at once while that costs less than 2 % of its time."""
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    """What pools of scaling policy Internal are scaled for."""
    pools: Annotated[
        list[PoolSpec], Field(min_length=1, max_length=64, json_schema_extra={"listMapKey": "name"})
    ]
    """Pools of engines, at least one. Each becomes a RolloutPool."""

    rules = (
        Rule(
            "pools",
            "self.pools.all(p, self.pools.exists_one(q, q.name == p.name))",
            "pool names must differ: rename one, or add its replicas to the other's",
            lambda s: len({p.name for p in s.pools}) == len(s.pools),
        ),
        Rule(
            "environment",
            "!has(self.environment) || self.pools.all(pool, !has(pool.site))",
            "episodes are played where the job's other processes are: leave the pools' site out",
            lambda s: s.environment is None or not s.sites,
        ),
    )

    @property
    def pool_sites(self) -> dict[str, str]:
        """Where each pool is, by name; "" for the hub."""
        return {pool.name: pool.site or "" for pool in self.pools}

    @property
    def max_turns(self) -> int:
        """Responses of the model in one trajectory at most."""
        return 1 if self.environment is None else self.environment.max_turns

    @property
    def sites(self) -> list[str]:
        """The sites that pools name, sorted."""
        return sorted({pool.site for pool in self.pools if pool.site})
