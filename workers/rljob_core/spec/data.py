"""`spec.data`, `spec.reward` and `spec.evaluation`: where prompts come from, and how answers are scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from rljob_core.spec.base import (
    ApiModel,
    Count,
    Form,
    Identifier,
    Immutable,
    Name,
    Options,
    PositiveCount,
    Rule,
    Text,
)
from rljob_core.spec.remote_forms import DATA_FORM, FILES_ONLY

Dataset = Annotated[
    str,
    StringConstraints(max_length=2048),
    Form(r"^[^\x00-\x1f]+$", "must be the name of a reasoning-gym task, or the path of a file"),
]

ENVIRONMENT_SCORE = "environment"
"""Among a job's rewards, the score that its environment gives an episode."""
TRUNCATION = "truncationPenalty"
"""Among the parts of a reward, what `spec.algorithm.truncated: Penalise` takes away; no function has this name."""

STEP_TRAJECTORIES = 50_000
"""A commit is one message of at most 1 MB, and names each of them."""


FIELDS_OF_REWARDS = {"exact_match": "answer", "math_verify": "answer", "python_tests": "tests"}
"""The item's field that a built-in reward reads."""


class DataFilter(ApiModel):
    """Rows of files that are left out."""

    max_prompt_tokens: PositiveCount | None = None
    """Rows are left out whose prompts, as the model reads them, have more tokens."""


class DataSpec(ApiModel):
    """Where prompts come from."""

    source: Literal["reasoning-gym", "jsonl", "parquet"] = "reasoning-gym"
    """reasoning-gym generates tasks with verifiers; jsonl and parquet read files."""
    dataset: Dataset
    """Name of the reasoning-gym task; or a file, or a folder of them: a path, pvc://claim/path, or what is downloaded:
    hf://datasets/org/name@revision/path, s3:// or gs://bucket/path."""
    options: Options = Field(default={})
    """Options of the source, for instance the task's difficulty."""
    # kubectl drops a null on its way to the API server, and the default would come instead.
    prompt_template: Annotated[Text | None, BeforeValidator(lambda given: None if given == "" else given)] = (
        "{{ question }}"
    )
    """Jinja template of a prompt over the item's fields and `metadata`; empty (or null): the tokenizer's chat template
    over the item's `messages` (or its question)."""
    chat_template_kwargs: Options = Field(default={})
    """Arguments of the tokenizer's chat template, for instance enable_thinking: false."""
    filter: DataFilter = DataFilter()
    """Rows of files that are left out."""
    on_bad_row: Literal["Refuse", "Skip"] = "Refuse"
    """What becomes of a job of whose rows some lack what the template or a built-in reward reads, or have null there:
    it is refused, or these rows are left out."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65536)] = 16
    """Groups in one training step."""
    group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples of each prompt."""
    seed: Count = 1
    """Seed of the order of prompts and of the generated tasks."""

    rules = (
        Rule(
            "promptsPerStep",
            f"self.promptsPerStep * self.groupSize <= {STEP_TRAJECTORIES}",
            f"promptsPerStep times groupSize must be at most {STEP_TRAJECTORIES}, which the record of a step can name: "
            "lower one of them",
            lambda s: s.prompts_per_step * s.group_size <= STEP_TRAJECTORIES,
        ),
        Rule(
            "filter",
            "self.source != 'reasoning-gym' || !has(self.filter.maxPromptTokens)",
            "a reasoning-gym task has no rows to leave out: remove filter.maxPromptTokens, or choose easier options",
            lambda s: s.source != "reasoning-gym" or s.filter.max_prompt_tokens is None,
        ),
        DATA_FORM,
        FILES_ONLY,
    )

    @property
    def leaves_rows_out(self) -> bool:
        """Whether a file's rows have to be read before it is known which of them count."""
        if self.source == "reasoning-gym":
            return False
        return self.on_bad_row == "Skip" or self.filter.max_prompt_tokens is not None


class EvaluationDataSpec(ApiModel):
    """Held-out prompts; what is not given is taken from spec.data."""

    source: Literal["reasoning-gym", "jsonl", "parquet"] | None = None
    """Source of the held-out prompts, as spec.data.source."""
    dataset: Dataset | None = None
    """Data set of the held-out prompts, as spec.data.dataset."""
    options: Options | None = None
    """Options of the source of held-out prompts, as spec.data.options."""
    seed: Count | None = None
    """Another seed than spec.data.seed, so that generated tasks are held out; absent: 1000003."""

    rules = (DATA_FORM,)

    def over(self, other: EvaluationDataSpec) -> EvaluationDataSpec:
        """These fields, and those of another where these do not give them."""
        return other.model_copy(update=self.model_dump(exclude_none=True))


USUAL_SAMPLES = 200
"""Prompts of a held-out set in an evaluation, if `samples` is not given."""
MOST_SAMPLES = 100_000
"""The same at most. The prompts of a job's first set are numbered from 0, those of its second from this number, …"""
_Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
_GroupSize = Annotated[int, Field(ge=1, le=128)]


class HeldOutSetSpec(ApiModel):
    """One of several held-out sets; what is not given is taken from spec.evaluation."""

    name: Name
    """By which its scores are found."""
    data: EvaluationDataSpec = EvaluationDataSpec()
    """Its prompts; fields that are not given are taken from spec.evaluation.data, or else from spec.data."""
    samples: _Samples | None = None
    """As spec.evaluation.samples."""
    group_size: _GroupSize | None = None
    """As spec.evaluation.groupSize."""


class EvaluationSpec(ApiModel):
    """Scores on held-out prompts, outside the staleness buffers."""

    data: Annotated[EvaluationDataSpec, Immutable("held-out scores are compared over the whole run")] = (
        EvaluationDataSpec()
    )
    """The held-out prompts."""
    every_steps: PositiveCount = 20
    """Steps between evaluations; the first and the last version are always evaluated."""
    samples: _Samples | None = None
    """Prompts of each set in an evaluation; absent: 200, or all rows of a file that has fewer. Each is answered
    groupSize times at spec.rollout.sampling, and once greedily."""
    group_size: _GroupSize = 1
    """Sampled answers to each prompt: with several, an evaluation also tells pass@k for k up to this number."""
    pass_reward: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Of pass@k: an answer with at least this reward passes."""
    sets: Annotated[
        list[HeldOutSetSpec],
        Field(max_length=16),
        Immutable("held-out scores are compared over the whole run"),
    ] = Field(default=[])
    """Several held-out sets, each with scores of its own; absent: one, of data. keepBest and `rljob compare` go by the
    first."""

    rules = (
        Rule(
            "sets",
            "self.sets.all(p, self.sets.exists_one(q, q.name == p.name))",
            "names of held-out sets must differ: rename one",
            lambda s: len({one.name for one in s.sets}) == len(s.sets),
        ),
    )

    @property
    def held_out(self) -> tuple[HeldOutSet, ...]:
        """Its sets, at least one; in each what it does not give itself is filled in."""
        if not self.sets:
            return (HeldOutSet("heldout", "spec.evaluation", self.data, self.samples, self.group_size),)
        return tuple(
            HeldOutSet(
                one.name,
                f"spec.evaluation.sets.{one.name}",
                one.data.over(self.data),
                one.samples or self.samples,
                one.group_size or self.group_size,
            )
            for one in self.sets
        )


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """A held-out set of a job.

    Attributes:
        name: of the set.
        path: the manifest's field that describes it.
        data: its prompts; what is not given is taken from spec.data.
        samples: prompts in an evaluation; None: as many as there are, up to `USUAL_SAMPLES`.
        group_size: sampled answers to each, beside the greedy one.
    """

    name: str
    path: str
    data: EvaluationDataSpec
    samples: int | None
    group_size: int

    def asked(self, rows: int | None) -> int:
        """How many prompts an evaluation asks, of data with so many rows; None: without end."""
        if self.samples is not None:
            return self.samples
        return USUAL_SAMPLES if rows is None else min(USUAL_SAMPLES, rows)


class RewardSpec(ApiModel):
    """How trajectories are scored."""

    functions: Annotated[
        list[Identifier],
        Field(min_length=1, max_length=16),
        Immutable("rewards are compared over the whole run"),
    ] = Field(default=["exact_match"])
    """Functions whose scores are summed up: `verifier` (the data set's), `exact_match`, `math_verify`, `python_tests`,
    `package.module:function`, a plug-in's, or `environment` (its score of each episode)."""
    weights: Annotated[
        list[Annotated[float, Field(ge=-1000, le=1000)]],
        Field(max_length=16),
        Immutable("rewards are compared over the whole run"),
    ] = Field(default=[])
    """What the score of each function is multiplied by, in the order of functions; absent: each by 1."""
    per_group: Annotated[
        list[Identifier], Field(max_length=16), Immutable("rewards are compared over the whole run")
    ] = Field(default=[])
    """Which of functions score all answers to a prompt in one call, for instance a judge that ranks them: they take
    `completions`, a list, and return a list of scores. Each is a `package.module:function`."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of reward workers."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds that a reward function may take for an answer; then it is ended. The answer is generated again, unless
    there is a timeoutScore."""
    timeout_score: Annotated[float, Field(ge=-1e6, le=1e6)] | None = None
    """Score that each function called by workers gives an answer for which one of them ran longer, for instance 0 or
    -1; absent: the answer is generated again, so that what is hard to score is missing among those that are trained
    on."""
    network: bool = False
    """Whether functions may open network connections, for instance to a model that judges."""
    skip_special_tokens: Annotated[bool, Immutable("rewards are compared over the whole run")] = True
    """Whether functions get answers without the model's special tokens. False: with those that the model wrote, such as
    <think> where it is one, but for the token that ended the answer."""
    template: Options | None = None
    """Patch of the reward workers' pod template; functions run in its container `scorer`."""

    rules = (
        Rule(
            "functions",
            f"!has(self.functions) || !('{TRUNCATION}' in self.functions)",
            f"{TRUNCATION} is what spec.algorithm.truncated takes away: name the function in another way",
            lambda reward: TRUNCATION not in reward.functions,
        ),
        Rule(
            "weights",
            "!has(self.weights) || size(self.weights) == 0 || size(self.weights) == size(self.functions)",
            "weights are one for each function, in the order of functions: add or remove some",
            lambda reward: len(reward.weights) in {0, len(reward.functions)},
        ),
        Rule(
            "perGroup",
            "!has(self.perGroup) || "
            "self.perGroup.all(f, f.contains(':') && has(self.functions) && f in self.functions)",
            "perGroup names those of functions that score a whole group, each a package.module:function: add them to "
            "functions, too",
            lambda reward: all(":" in name and name in reward.functions for name in reward.per_group),
        ),
    )

    def total(self, parts: Mapping[str, float]) -> float:
        """The sum of an answer's scores, by their weights; what has no weight, as a penalty, counts as it is."""
        weights = dict(zip(self.functions, self.weights, strict=False))
        return sum(weights.get(name, 1.0) * score for name, score in parts.items())

    @property
    def largest(self) -> float:
        """The largest sum of scores that are no larger than 1, and no smaller than -1."""
        return sum(map(abs, self.weights)) if self.weights else float(len(self.functions))

    @property
    def called(self) -> list[str]:
        """The functions that reward workers call: all but the environment's own score."""
        return [name for name in self.functions if name != ENVIRONMENT_SCORE]

    @property
    def fields(self) -> dict[str, str]:
        """The item's fields that functions read, as far as it is known, each with the first one that does."""
        read = dict[str, str]()
        for name in self.functions:
            if name in FIELDS_OF_REWARDS:
                read.setdefault(FIELDS_OF_REWARDS[name], name)
        return read
