"""Every wrong manifest is refused twice, at the same field for the same reason: by a real API server and by `rljob`.

What a JSON schema says is said in the API server's words and in ours, a `Reason` has both; what we say ourselves
(`Rule`, `Form`, `Immutable`) is said in one sentence by both.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.errors import ClusterError
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace
from example_job import MANIFEST, write_model
from invocation import claimed, refused, rljob
from pydantic import ValidationError
from strict_api import ApiRefusal, StrictApi

from rljob_cli.manifest.load import InvalidManifest, load_job
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, RolloutPool, Site, immutable_fields
from rljob_core.weight_transports import WEIGHT_TRANSPORTS
from rljob_operator.crd.definitions import crds
from rljob_operator.crd.schema import RULES

pytestmark = pytest.mark.smoke

REPOSITORY = Path(__file__).parents[2]
ABSENT = object()
Object = dict[str, Any]

POOL: Object = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RolloutPool",
    "metadata": {"name": "sums-rollout-cpu"},
    "spec": {"job": "sums", "pool": "cpu", "config": "{}", "template": {}},
}


def changed(manifest: Object, changes: Mapping[str, Any]) -> Object:
    """A copy with other values at some paths: `spec.rollout.pools[0].name`; `ABSENT` removes."""
    manifest = copy.deepcopy(manifest)
    for path, value in changes.items():
        *steps, last = [int(step) if step.isdecimal() else step for step in re.findall(r"\w+", path)]
        target: Any = manifest
        for step in steps:
            target = target[step] if isinstance(step, int) else target.setdefault(step, {})
        if value is ABSENT:
            del target[last]
        elif isinstance(target, list):
            target[last:] = [value]
        else:
            target[last] = value
    return manifest


# ------------------------------------------------------------------------------------------------- reasons


@dataclass(frozen=True)
class Reason:
    """Words of the API server's message and of ours."""

    server: str
    command: str


def said(words: str) -> Reason:
    """By a rule of ours."""
    return Reason(words, words)


def unknown(instead: str) -> Reason:
    return Reason("unknown field", f"unknown field: did you mean {instead}?")


def needed(kind: str, words: str) -> Reason:
    return Reason(f"must be of type {kind}", f"{words} is needed")


def one_of(*values: str) -> Reason:
    listed = ", ".join(f'"{value}"' for value in values)
    instead = f"write one of {', '.join(values)}" if len(values) > 1 else f"write {values[0]}"
    return Reason(f"supported values: {listed}", instead)


def at_least(bound: float) -> Reason:
    return Reason(f"should be greater than or equal to {bound}", f"must be at least {bound}")


def at_most(bound: float) -> Reason:
    return Reason(f"should be less than or equal to {bound}", f"must be at most {bound}")


def more_than(bound: float) -> Reason:
    return Reason(f"should be greater than {bound}", f"must be greater than {bound}")


def less_than(bound: float) -> Reason:
    return Reason(f"should be less than {bound}", f"must be less than {bound}")


def most_characters(bound: int) -> Reason:
    return Reason(f"may not be more than {bound} bytes", f"must have at most {bound} characters")


def most_items(bound: int) -> Reason:
    return said(f"must have at most {bound} items")


REQUIRED = Reason("Required value", "is required")
ONE_ITEM = Reason("should have at least 1 items", "must have at least 1 item")
NOT_EMPTY = Reason("should be at least 1 chars long", "must not be empty")
TEXT = needed("string", "text")
WHOLE = needed("integer", "a whole number")
NUMBER = needed("number", "a number")
TRUE_OR_FALSE = needed("boolean", "true or false")
LIST = needed("array", "a list")
MAPPING = needed("object", "a mapping")
LABEL = said("must be a name of lower-case letters, digits and hyphens, a letter or digit at either end")
JOB_NAME = said("and begin with a letter: its pods' host names begin with it")
OBJECT_NAME = said("must be the name of a Kubernetes object in this namespace")
IDENTIFIER = said("must be a name, or an entry point such as package.module:function")
URI = said("must be a path, or a URI with its scheme: file:///models/tiny")
DATASET = said("must be the name of a reasoning-gym task, or the path of a file")
NATS_URL = said("must be the URL of a NATS server: for instance nats://nats:4222")
ONE_SCHEME = said("url must have the same scheme before each server, as the first one's counts for all")
IMAGE = said("must be an image's name without spaces")
PRICE = said('must be a decimal number as text, without a currency: for instance "2.10"')
CIDR = said("must be a range of addresses: for instance 10.1.0.0/16")
CONTROLLER = said("must be a domain and a controller's name: for instance rljob.dev/operator")


# ------------------------------------------------------------------------------------------------- manifests


@dataclass(frozen=True)
class Case:
    """A change to a manifest that would run, and where and why it is refused."""

    changes: Mapping[str, Any]
    field: str
    reason: Reason

    @property
    def name(self) -> str:
        *_, given = self.changes.values()
        return f"{self.field}={'absent' if given is ABSENT else json.dumps(given)[:24]}"


def case(path: str, value: Any, reason: Reason, *, at: str = "", **also: Any) -> Case:
    """`value` at `path` is refused there, or at another field."""
    return Case({**also, path: value}, at or path, reason)


POOL_0 = "spec.rollout.pools[0]"
SCORED_BY_ENVIRONMENT: Object = {"spec.reward.functions": ["environment"]}
ONLY_SCALED: Object = {f"{POOL_0}.replicas": ABSENT}

MANIFESTS = [
    # No such field.
    case("spek", {}, Reason("unknown field", "unknown field")),
    case("spec.step", 4, unknown("steps")),
    case("spec.status", {}, Reason("unknown field", "unknown field")),
    case("spec.pipeline.maxStalenes", 2, unknown("maxStaleness")),
    case("spec.rollout.sampling.topp", 0.9, unknown("topP or stop")),
    case(f"{POOL_0}.replica", 2, unknown("replicas")),
    case(f"{POOL_0}.scaling.minReplica", 2, unknown("minReplicas or maxReplicas"), **ONLY_SCALED),
    case("metadata.label", {"team": "a"}, unknown("labels")),
    # Other types.
    case("spec.steps", "16", WHOLE),
    case("spec.steps", 1.5, WHOLE),
    case("spec.steps", True, WHOLE),
    case("spec.suspend", "yes", TRUE_OR_FALSE),
    case("spec.algorithm.learningRate", "1e-4", NUMBER),
    case("spec.algorithm.clip", True, NUMBER),
    case("spec.reward.functions", "exact_match", LIST),
    case("spec.trackers", [3], MAPPING, at="spec.trackers[0]"),
    case("spec.trackers", [{}], REQUIRED, at="spec.trackers[0].name"),
    case("spec.trackers", [{"name": "W&B"}], IDENTIFIER, at="spec.trackers[0].name"),
    case("spec.trackers", [{"name": "WandB", "options": []}], MAPPING, at="spec.trackers[0].options"),
    case(
        "spec.trackers", [{"name": "WandB", "option": {}}], unknown("options"), at="spec.trackers[0].option"
    ),
    case(
        "spec.trackers",
        [{"name": "WandB", "credentialsSecret": "my_key"}],
        OBJECT_NAME,
        at="spec.trackers[0].credentialsSecret",
    ),
    case(
        "spec.trackers",
        [{"name": "WandB", "timeoutSeconds": 0}],
        more_than(0),
        at="spec.trackers[0].timeoutSeconds",
    ),
    case(
        "spec.trackers",
        [{"name": "WandB", "timeoutSeconds": 3601}],
        at_most(3600),
        at="spec.trackers[0].timeoutSeconds",
    ),
    case(
        "spec.trackers",
        [{"name": "WandB", "image": "my image"}],
        said("must be an image's name without spaces"),
        at="spec.trackers[0].image",
    ),
    case("spec.data", [], MAPPING),
    case("spec.data.options", "easy", MAPPING),
    case(f"{POOL_0}.template", [], MAPPING),
    case(f"{POOL_0}.costPerHour", 2.1, TEXT),
    case("spec.rollout.pools", [None], MAPPING, at=POOL_0),
    # None of the values.
    case("spec.pipeline.mode", "Async", one_of("Synchronous", "Streaming", "BoundedAsync")),
    case("spec.pipeline.inflight", "Abort", one_of("Keep", "Update", "Restart")),
    case("spec.data.source", "csv", one_of("reasoning-gym", "jsonl", "parquet")),
    case(
        "spec.evaluation.data.source",
        "csv",
        Reason(
            "should match '^(reasoning-gym|jsonl|parquet)$'", "write one of reasoning-gym, jsonl, parquet"
        ),
    ),
    case("spec.trainer.gang", "Kueue", one_of("Auto", "None", "Workload", "PodGroup", "Volcano")),
    case("spec.weights.transport", "NCCL", one_of(*WEIGHT_TRANSPORTS)),
    case(f"{POOL_0}.scaling.policy", "Inner", one_of("External", "Internal"), **ONLY_SCALED),
    # Out of bounds.
    case("spec.steps", 0, at_least(1)),
    case("spec.steps", 10_000_001, at_most(10_000_000)),
    case("spec.pipeline.maxStaleness", 65, at_most(64)),
    case("spec.algorithm.clip", 1, less_than(1)),
    case("spec.algorithm.maxGradNorm", 0, more_than(0)),
    case("spec.rollout.sampling.temperature", 0, more_than(0)),
    case("spec.rollout.sampling.topP", 1.5, at_most(1)),
    case("spec.data.groupSize", 1025, at_most(1024)),
    case("spec.weights.delta.anchorEvery", 0, at_least(1)),
    case("spec.weights.delta.anchorEvery", 1001, at_most(1000)),
    case("spec.reward.timeoutSeconds", 3601, at_most(3600)),
    case("spec.rollout.autoscaling.trainerWaiting", 0.95, at_most(0.9)),
    case("spec.rollout.autoscaling.deadlineSeconds", 0, at_least(1)),
    case(f"{POOL_0}.interruptionsPerHour", -1, at_least(0)),
    case("spec.model.lora.rank", 0, at_least(1)),
    case("spec.trainer.numNodes", 0, at_least(1)),
    case("spec.trainer.minNodes", 0, at_least(1)),
    case(f"{POOL_0}.replicas", -1, at_least(0)),
    case("spec.backoffLimit", -1, at_least(0)),
    case("spec.ttlSecondsAfterFinished", -1, at_least(0)),
    case(
        "spec.networking.egress",
        [{"cidr": "10.0.0.0/8", "ports": [0]}],
        at_least(1),
        at="spec.networking.egress[0].ports[0]",
    ),
    case("spec.ttlSecondsAfterFinished", 2**31, at_most(2**31 - 1)),
    case("spec.activeDeadlineSeconds", 0, at_least(1)),
    case("spec.rollout.pools", [], ONE_ITEM),
    case("spec.rollout.pools", [{"name": f"p{number}"} for number in range(65)], most_items(64)),
    case("spec.reward.functions", [], ONE_ITEM),
    case("spec.trackers", [{"name": f"a{n}"} for n in range(9)], most_items(8)),
    case("spec.data.options", {f"o{number}": 0 for number in range(257)}, most_items(256)),
    case("spec.rollout.sampling.stop", [""], NOT_EMPTY, at="spec.rollout.sampling.stop[0]"),
    case("spec.data.promptTemplate", "x" * 65_537, most_characters(65_536)),
    case("spec.model.uri", "m" * 2049, most_characters(2048)),
    case(f"{POOL_0}.name", "p" * 41, most_characters(40)),
    case("metadata.name", "j" * 53, most_characters(52)),
    # Missing; null is as good as absent.
    case("spec", ABSENT, REQUIRED),
    case("spec.steps", ABSENT, REQUIRED),
    case("spec.steps", None, REQUIRED),
    case("spec.model", ABSENT, REQUIRED),
    case("spec.model.uri", ABSENT, REQUIRED),
    case("spec.data.dataset", ABSENT, REQUIRED),
    case("spec.rollout.pools", ABSENT, REQUIRED),
    case(f"{POOL_0}.name", ABSENT, REQUIRED),
    case("spec.rollout.environment", {}, REQUIRED, at="spec.rollout.environment.name"),
    # Text of another form.
    case("metadata.name", "1st", JOB_NAME),
    case("metadata.name", "a.b", JOB_NAME),
    case("metadata.name", "Sums", JOB_NAME),
    case(f"{POOL_0}.name", "Spot H100", LABEL),
    case(f"{POOL_0}.name", "", LABEL),
    case(f"{POOL_0}.name", "cpu\n", LABEL),
    case(f"{POOL_0}.site", "east-", LABEL),
    case(f"{POOL_0}.costPerHour", "$2", PRICE),
    case("spec.rollout.autoscaling.budgetPerHour", "-1", PRICE),
    case("spec.model.uri", "", URI),
    case("spec.model.uri", "hf:tiny", URI),
    case("spec.model.uri", "a\0b", URI),
    case("spec.model.uri", "hf://tiny", said("must be hf://org/name, hf://org/name@revision")),
    case(
        "spec.model.cache", "s3://bucket/cache", said("must be pvc://claim/folder, or a path that pods have")
    ),
    case("spec.data.dataset", "", DATASET),
    case(
        "spec.data.dataset",
        "hf://datasets/sums",
        said("must be hf://datasets/org/name@revision/path"),
        **{"spec.data.source": "jsonl"},
    ),
    case(
        "spec.data.dataset",
        "s3://bucket/sums.jsonl",
        said("must be jsonl or parquet, as the data set's files are"),
        at="spec.data.source",
    ),
    case("spec.weights.uri", "s3:bucket", URI),
    case("spec.trainer.checkpoint.uri", "://bucket", URI),
    case("spec.model.credentialsSecret", "my_secret", OBJECT_NAME),
    case("spec.imagePullSecrets", ["good", "Bad"], OBJECT_NAME, at="spec.imagePullSecrets[1]"),
    case("spec.image", "my image", IMAGE),
    case("spec.image", "", IMAGE),
    case("spec.nats.url", "http://nats:4222", NATS_URL),
    case("spec.nats.url", "tls://a:4222,nats://b:4222", ONE_SCHEME),
    case("spec.nats.url", "nats://a:4222,b:4222", ONE_SCHEME),
    case("spec.nats.url", "tls://a:4222,", ONE_SCHEME),
    case("spec.managedBy", "me", CONTROLLER),
    case("spec.nats.replicas", 2, said("replicas must be 1, 3 or 5")),
    case("spec.nats.credentialsGeneration", -1, at_least(0)),
    case("spec.nats.credentialsGeneration", 1_000_001, at_most(1_000_000)),
    case("spec.networking.egress", [{"cidr": "10.1.2.3"}], CIDR, at="spec.networking.egress[0].cidr"),
    case("spec.networking.egress", [{"cidr": "300.0.0.0/8"}], CIDR, at="spec.networking.egress[0].cidr"),
    case("spec.networking.egress", [{"namespace": "a.b"}], LABEL, at="spec.networking.egress[0].namespace"),
    case("spec.trainer.backend", "DeepSpeed 2", IDENTIFIER),
    case("spec.algorithm.loss", "Dr. GRPO", IDENTIFIER),
    case("spec.reward.functions", ["my rewards"], IDENTIFIER, at="spec.reward.functions[0]"),
    # Fields that do not go together.
    case(
        "spec.data",
        {"dataset": "chain_sum", "promptsPerStep": 50_001, "groupSize": 1},
        said("promptsPerStep times groupSize must be at most 50000"),
        at="spec.data.promptsPerStep",
    ),
    case(
        "spec.data",
        {"dataset": "chain_sum", "filter": {"maxPromptTokens": 9}},
        said("a reasoning-gym task has no rows to leave out"),
        at="spec.data.filter",
    ),
    case(
        "spec.pipeline",
        {"mode": "Streaming", "maxStaleness": 2},
        said(
            "maxStaleness must be 0 with mode Synchronous or Streaming: remove it, or set mode to BoundedAsync"
        ),
        at="spec.pipeline.maxStaleness",
    ),
    case(
        "spec.pipeline.maxStaleness",
        0,
        said("maxStaleness must be at least 1 with mode BoundedAsync: raise it, or set mode to Streaming"),
    ),
    case(
        "spec.weights",
        {"transport": "Nats", "uri": "/weights"},
        said("Nats keeps the weights in the job's streams: remove uri, or use transport Files"),
        at="spec.weights.uri",
    ),
    case(
        "spec.weights.uri",
        "s3://bucket/weights",
        said(
            "each engine at another site would read all weights over its link: use transport Nats, of which a site"
        ),
        at="spec.weights.transport",
        **{f"{POOL_0}.site": "east"},
    ),
    case(
        f"{POOL_0}.scaling",
        {"maxReplicas": 2},
        said(
            "replicas and scaling exclude each other: keep replicas for a fixed number, or scaling to let an"
        ),
    ),
    case(
        "spec.trainer.checkpoint.keepBest",
        True,
        said("the best checkpoint is that of the best held-out reward: add evaluation, or remove keepBest"),
    ),
    case(
        "spec.reward.weights",
        [1.0, 2.0],
        said("weights are one for each function, in the order of functions: add or remove some"),
    ),
    case(
        "spec.reward.functions",
        ["truncationPenalty"],
        said(
            "truncationPenalty is what spec.algorithm.truncated takes away: name the function in another way"
        ),
    ),
    case(
        "spec.reward.perGroup",
        ["judge:rank"],
        said("perGroup names those of functions that score a whole group"),
    ),
    case(
        "spec.evaluation.sets",
        [{"name": "a"}, {"name": "a"}],
        said("names of held-out sets must differ: rename one"),
    ),
    case(
        "spec.algorithm.learningRateSchedule",
        "Linear",
        said(
            "learningRateSchedule Linear and Cosine end at a step: add decaySteps, for instance the value of steps"
        ),
        at="spec.algorithm.decaySteps",
    ),
    case(
        "spec.algorithm.decaySteps",
        3,
        said("the learning rate falls after the warm-up: make decaySteps more than warmupSteps"),
        **{"spec.algorithm.warmupSteps": 3},
    ),
    case(
        "spec.algorithm.minLearningRate",
        1e-3,
        said("minLearningRate is more than learningRate, the peak: lower it"),
    ),
    case(
        "spec.trainer.minNodes",
        2,
        said("minNodes is more than numNodes: lower it, or raise numNodes, with which the gang starts"),
    ),
    case(
        f"{POOL_0}.scaling.minReplicas",
        3,
        said("minReplicas must not exceed maxReplicas (1 if absent): lower it, or raise maxReplicas"),
        **ONLY_SCALED,
    ),
    case(
        f"{POOL_0}.scaling",
        {"policy": "Internal", "maxReplicas": 4},
        said(
            'scaling policy Internal chooses by price: add costPerHour, such as "2.10", or "1" if all cost the'
        ),
        at=f"{POOL_0}.costPerHour",
        **{f"{POOL_0}.replicas": ABSENT},
    ),
    case(
        f"{POOL_0}.scaling",
        {"owner": "Site", "maxReplicas": 4},
        said(
            "scaling.owner Site is for pools of scaling policy External that are at a Site: add site and leave"
        ),
        **{f"{POOL_0}.replicas": ABSENT},
    ),
    case(
        f"{POOL_0}.site",
        "hub",
        said("hub is where the job's other processes are: leave site out"),
    ),
    case(
        "spec.rollout.pools[1]",
        {"name": "cpu"},
        said("pool names must differ: rename one, or add its replicas to the other's"),
        at="spec.rollout.pools",
    ),
    case(
        "spec.networking.egress",
        [{"ports": [443]}],
        said("cidr or namespace must say where, and only one of them"),
        at="spec.networking.egress[0].cidr",
    ),
    case(
        "spec.networking.egress",
        [{"cidr": "fd00:::/16"}],
        said("cidr has numbers and colons that are not an address"),
        at="spec.networking.egress[0].cidr",
    ),
    case(
        "spec.trackers",
        [{"name": "WandB"}, {"name": "WandB"}],
        said("two trackers have the same name: remove one of them"),
    ),
    # What no release has yet.
    case(
        "spec.rollout.environment",
        {"name": "web"},
        said("an episode has the score that its environment gives it: add environment"),
        at="spec.reward.functions",
    ),
    case(
        "spec.reward.functions",
        ["environment"],
        said("environment is the score of spec.rollout.environment, which the job has not"),
    ),
    case(
        "spec.rollout.environment",
        {"name": "web"},
        said("episodes are played where the job's other processes are"),
        **{**SCORED_BY_ENVIRONMENT, f"{POOL_0}.site": "east"},
    ),
    case(
        "spec.rollout.environment",
        {"name": "web", "maxTurns": 501},
        at_most(500),
        at="spec.rollout.environment.maxTurns",
        **SCORED_BY_ENVIRONMENT,
    ),
]

ACCEPTED: list[Object] = [
    {},
    {
        "spec.networking.egress": [
            {"cidr": "0.0.0.0/0"},
            {"cidr": "fd00::/8"},
            {"namespace": "minio", "ports": [9000]},
        ]
    },
    {"spec.steps": 4.0},  # JSON has one kind of number
    {"spec.backoffLimit": None, "spec.pipeline": None, "spec.data.groupSize": None},  # the defaults
    {"spec.nats.url": "tls://a:4222,tls://b,tls://[::1]:4222"},
    {f"{POOL_0}.site": None, "spec.nats.url": None, "metadata.labels": {"team": "a"}},
]


@pytest.fixture(scope="module")
def here(control_plane: SharedControlPlane) -> Iterator[Kubectl]:
    """A namespace of a server that knows our kinds."""
    kubectl = control_plane.kubectl
    kubectl("apply", "--server-side", "--kustomize", str(REPOSITORY / "crds"))
    for file in crds().values():
        kubectl.wait("condition=Established", f"crd/{file['metadata']['name']}")
    with own_namespace(kubectl, operated=False) as name:
        yield kubectl.within(name)


@pytest.fixture(scope="module")
def api(here: Kubectl) -> Iterator[StrictApi]:
    with StrictApi(here.kubeconfig, here.namespace) as api:
        yield api


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the model, which is never written to."""
    folder = tmp_path_factory.mktemp("manifests")
    write_model(folder / "model")
    return folder


def write(folder: Path, manifest: Object) -> Path:
    file = folder / "job.yaml"
    file.write_text(json.dumps(manifest))  # which is YAML, too
    return file


def assert_refused(reasons: list[tuple[str, str]], place: str, words: str) -> None:
    assert any(found == place and words in message for found, message in reasons), reasons
    # Else a user would go looking somewhere else. The server also says that it looked no further; and of what a scale
    # subresource has it speaks twice, once with a dot before it.
    others = [found for found, _ in reasons if not found.lstrip(".").startswith(place)]
    assert set(others) <= {"", "<nil>"}, reasons


@pytest.mark.parametrize("wrong", MANIFESTS, ids=lambda wrong: wrong.name)
def test_the_api_server_refuses(wrong: Case, api: StrictApi) -> None:
    with pytest.raises(ApiRefusal) as refusal:
        api.create(changed(MANIFEST, wrong.changes))
    assert_refused(refusal.value.reasons, wrong.field, wrong.reason.server)


@pytest.mark.parametrize("wrong", MANIFESTS, ids=lambda wrong: wrong.name)
def test_the_command_refuses(wrong: Case, folder: Path) -> None:
    file = write(folder, changed(MANIFEST, wrong.changes))
    validated = rljob("validate", file)
    assert validated.code == 2  # lest it runs
    (error,) = refused(file)
    assert validated.errors == [f"error: {error}"]
    place, _, message = error.partition(": ")
    assert place == wrong.field
    assert wrong.reason.command in message


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_both_accept(changes: Object, api: StrictApi, folder: Path) -> None:
    manifest = changed(MANIFEST, changes)
    api.create(manifest)
    validated = rljob("validate", write(folder, manifest))
    assert validated.code == 0, validated.errors


def test_labels_are_text_to_both(api: StrictApi, folder: Path) -> None:
    manifest = changed(MANIFEST, {"metadata.labels": {"team": 1}})
    with pytest.raises(ApiRefusal, match=r"number into Go struct field ObjectMeta\.labels of type string"):
        api.create(manifest)
    (error,) = refused(write(folder, manifest))
    assert error.startswith('metadata.labels.team: text is needed, not 1: write "1"')


def fields(schema: Object, path: str) -> Iterator[str]:
    """Every field below, of a list's items those of the first."""
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from fields(below, f"{path}.{name}")
        yield from fields(below.get("items", {}), f"{path}.{name}[0]")


@pytest.mark.parametrize("value", [None, "", "a\0", -1, 0.5, 10**10, True, ["a"], {"a": 1}], ids=repr)
def test_any_value_of_any_field_is_refused_by_both_or_by_none(
    value: Any, api: StrictApi, folder: Path
) -> None:
    (version,) = crds()["rljobs.yaml"]["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    differ = []
    for path in fields(spec, "spec"):
        given = {**(ONLY_SCALED if ".scaling" in path else {}), path: value}
        if path.startswith("spec.rollout.environment."):
            given = {"spec.rollout.environment": {"name": "tools"}, path: value}
        if path.startswith("spec.networking.egress[0]."):
            place = {} if path.endswith(".namespace") else {"cidr": "10.0.0.0/8"}
            given = {"spec.networking.egress": [place], path: value}
        if path.startswith("spec.trackers[0]."):
            given = {"spec.trackers": [{"name": "TensorBoard"}], path: value}
        if path.startswith("spec.evaluation.sets[0]."):
            given = {"spec.evaluation.sets": [{"name": "a"}], path: value}
        manifest = changed(MANIFEST, given)
        places = [set[str](), set[str]()]
        try:
            api.create(manifest)
        except ApiRefusal as refusal:
            places[0] = {place for place, _ in refusal.reasons} - {"", "<nil>"}
        try:
            load_job(write(folder, manifest))
        except InvalidManifest as invalid:
            places[1] = {error.path for error in invalid.exceptions if isinstance(error, SpecError)}
        # Each may see more wrong: the server asks rules also of what is out of bounds, and says no more than that it
        # does not know a field if there is one, though it be below what is no mapping.
        same = any(server.startswith(place) for server in places[0] for place in places[1])
        if any(places) and not same:
            differ.append((path, *places))
    assert differ == []


def rules(schema: Any) -> Iterator[Object]:
    """All rules of a schema."""
    if isinstance(schema, dict):
        yield from schema.get(RULES, ())
    for below in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from rules(below)


def test_every_rule_has_a_case() -> None:
    messages = {rule["message"] for rule in rules(crds()["rljobs.yaml"]) if "oldSelf" not in rule["rule"]}
    assert len(messages) > 10
    tried = {wrong.reason.server for wrong in MANIFESTS}
    assert [message for message in messages if not any(words in message for words in tried)] == []


# ------------------------------------------------------------------------------------------------- changes


@dataclass(frozen=True)
class Change:
    """A change to a job that exists, which would undo what it has done.

    Attributes:
        before: what else the job has.
        command: whether `rljob run --resume` can get as far as to refuse it.
    """

    path: str
    value: Any
    because: str
    instead: str = "create another RLJob"
    before: Mapping[str, Any] = field(default_factory=dict)
    command: bool = True

    @property
    def name(self) -> str:
        return f"{self.path}={'absent' if self.value is ABSENT else json.dumps(self.value)}"


_DATA = "the ledger numbers the prompts of this data"
_HELD_OUT = "held-out scores are compared over the whole run"
_REWARDS = "rewards are compared over the whole run"
_ADAPTERS = "the job's checkpoints hold these adapters"
_WEIGHTS = "the job's weights are there"
_CHECKPOINTS = "the job's checkpoints are there"
_BACKENDS = "only Torch, FSDP and DeepSpeed continue from each other's checkpoints"
_LEDGER = "the job's ledger and trajectories are there"
OPTIONS: Object = {"spec.data.options": {"min_terms": 2, "max_terms": 4}}
HELD_OUT: Object = {"spec.evaluation.data.options": {"min_terms": 2, "max_terms": 4}}
SETS: Object = {"spec.evaluation.sets": [{"name": "a", "data": {"options": {"min_terms": 2}}}]}
SETS_WITH_OTHER_OPTIONS = [{"name": "a", "data": {"options": {"min_terms": 3}}}]

CHANGES = [
    Change("spec.managedBy", "example.org/other", "two controllers would undo each other's work"),
    Change("spec.data.dataset", "leg_counting", _DATA),
    Change("spec.data.source", "jsonl", _DATA, command=False),  # which wants a file before all else
    Change("spec.data.groupSize", 4, _DATA),
    Change("spec.data.seed", 2, _DATA),
    Change(
        "spec.data.promptTemplate", "", _DATA, command=False
    ),  # the example's tokenizer has no chat template
    Change("spec.data.promptTemplate", "Q: {{ question }}", _DATA),
    Change("spec.data.chatTemplateKwargs", {"thinking": False}, _DATA, command=False),  # which warns, too
    Change("spec.data.options", {"min_terms": 2}, _DATA),
    Change("spec.data.options", {"min_terms": 3, "max_terms": 4}, _DATA, before=OPTIONS),
    Change("spec.data.options", {"min_terms": 2, "max_digits": 4}, _DATA, before=OPTIONS),  # a renamed key
    Change("spec.data.options", ABSENT, _DATA, before=OPTIONS),
    Change("spec.evaluation.data.seed", 7, _HELD_OUT, before={"spec.evaluation": {}}),
    Change("spec.evaluation.data.dataset", "leg_counting", _HELD_OUT, before={"spec.evaluation": {}}),
    Change("spec.evaluation.data.options", {"min_terms": 2}, _HELD_OUT, before={"spec.evaluation": {}}),
    Change("spec.evaluation.data.options", {"min_terms": 2, "max_digits": 4}, _HELD_OUT, before=HELD_OUT),
    Change("spec.evaluation.data.options", ABSENT, _HELD_OUT, before=HELD_OUT),
    Change("spec.evaluation.sets", [{"name": "a"}, {"name": "b"}], _HELD_OUT, before=SETS),
    Change("spec.evaluation.sets", SETS_WITH_OTHER_OPTIONS, _HELD_OUT, before=SETS),
    Change("spec.reward.functions", ["verifier"], _REWARDS),
    Change("spec.reward.skipSpecialTokens", False, _REWARDS),
    Change(
        "spec.reward.perGroup", ["judge:rank"], _REWARDS, before={"spec.reward.functions": ["judge:rank"]}
    ),
    Change("spec.reward.weights", [2.0], _REWARDS),
    Change(
        "spec.rollout.environment.maxTurns",
        4,
        _REWARDS,
        before={**SCORED_BY_ENVIRONMENT, "spec.rollout.environment": {"name": "web", "maxTurns": 3}},
        command=False,  # which wants the environment's module before all else
    ),
    Change("spec.trainer.backend", "Emulated", _BACKENDS),
    Change("spec.trainer.backend", "Torch", _BACKENDS, before={"spec.trainer.backend": "Emulated"}),
    Change("spec.trainer.checkpoint.uri", "/checkpoints", _CHECKPOINTS),
    Change("spec.trainer.checkpoint.uri", ABSENT, _CHECKPOINTS, before={"spec.trainer.checkpoint.uri": "/a"}),
    Change("spec.weights.transport", "Nats", _WEIGHTS),
    Change("spec.weights.uri", "/weights", _WEIGHTS),
    Change("spec.weights.uri", "/b", _WEIGHTS, before={"spec.weights.uri": "/a"}),
    Change("spec.model.lora", {"rank": 4}, _ADAPTERS),  # as the model's smallest layer
    Change("spec.model.lora.rank", 2, _ADAPTERS, before={"spec.model.lora": {"rank": 4}}),
    Change("spec.model.lora", ABSENT, _ADAPTERS, before={"spec.model.lora": {"rank": 4}}),
    # The command compares the model's content, for its folder may have moved; a server it asks, for there is the
    # embedded one, too; and all of its pools are on one machine.
    Change(
        "spec.model.uri",
        "another",
        "the job's weights and checkpoints began with this model",
        command=False,
    ),
    Change("spec.nats.url", "nats://nats:4222", _LEDGER, command=False),
    Change("spec.nats.url", ABSENT, _LEDGER, before={"spec.nats.url": "nats://nats:4222"}, command=False),
    Change(
        f"{POOL_0}.site",
        "west",
        "a pool stays where it is",
        "add another pool and remove this one",
        before={f"{POOL_0}.site": "east"},
        command=False,
    ),
]

MAY_CHANGE: list[Object] = [
    {"spec.steps": 9, "spec.suspend": True, "spec.image": "rljob:2"},
    {"spec.pipeline.mode": "Streaming", "spec.pipeline.maxStaleness": 0},
    {"spec.data.options": {}, "spec.nats": {"url": None}},  # as if not given
    {f"{POOL_0}.replicas": 3, f"{POOL_0}.template": {"spec": {"nodeSelector": None}}},
    {"spec.rollout.pools[1]": {"name": "other"}, "spec.evaluation": {}, "spec.weights.keepVersions": 2},
    {"spec.weights.delta": {"anchorEvery": 5}},
    {"spec.nats": {"credentialsGeneration": 1}},
    {"spec.trainer.backend": "DeepSpeed", "spec.trainer.numNodes": 2},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_api_server_keeps(change: Change, api: StrictApi, request: pytest.FixtureRequest) -> None:
    before = {"metadata.name": f"kept-{CHANGES.index(change)}", **change.before}
    stored = api.create(changed(MANIFEST, before), dry_run=False)
    with pytest.raises(ApiRefusal) as refusal:
        api.replace(changed(stored, {change.path: change.value}))
    words = f"is immutable, because {change.because}: change it back, or {change.instead}"
    assert_refused(refusal.value.reasons, change.path, words)


@pytest.mark.parametrize("change", [c for c in CHANGES if c.command], ids=lambda change: change.name)
def test_a_resumed_run_keeps(change: Change, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "judge.py").write_text("def rank(completions): return [0.0] * len(completions)\n")
    before = changed(MANIFEST, change.before)
    claimed(write(tmp_path, before))
    errors = refused(write(tmp_path, changed(before, {change.path: change.value})), "--resume")
    for error in errors:
        place, _, message = error.partition(": ")
        assert place == change.path or place.startswith(f"{change.path}.")  # which option it was
        assert (
            f"is immutable, because {change.because}: change it back, or choose another --output" in message
        )
    assert errors


def test_every_immutable_field_has_a_case() -> None:
    tried = {re.sub(r"\[\d\]", "", change.path) for change in CHANGES}
    marked = {path: mark.because for path, mark in immutable_fields(RLJob)}
    assert not {p for p in marked if not any(t == p or t.startswith(f"{p}.") for t in tried)}
    assert {change.because for change in CHANGES} <= set(marked.values())


@pytest.mark.parametrize("changes", MAY_CHANGE, ids=str)
def test_all_else_may_change(changes: Object, api: StrictApi) -> None:
    stored = api.create(
        changed(MANIFEST, {"metadata.name": f"free-{MAY_CHANGE.index(changes)}"}), dry_run=False
    )
    api.replace(changed(stored, changes))


def test_where_an_environment_runs_may_change(api: StrictApi) -> None:
    environment = {"name": "web", "maxTurns": 3}
    before = {**SCORED_BY_ENVIRONMENT, "spec.rollout.environment": environment, "metadata.name": "free-pods"}
    stored = api.create(changed(MANIFEST, before), dry_run=False)
    elsewhere = {"replicas": 0, "image": "web:2", "template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}
    api.replace(changed(stored, {"spec.rollout.environment": {**environment, **elsewhere}}))


@pytest.mark.parametrize("fewer", [1, ABSENT])
def test_credentials_that_were_revoked_stay_so(fewer: Any, api: StrictApi) -> None:
    path = "spec.nats.credentialsGeneration"
    name = f"revoked-{'absent' if fewer is ABSENT else fewer}"
    stored = api.create(changed(MANIFEST, {"metadata.name": name, path: 2}), dry_run=False)
    with pytest.raises(ApiRefusal) as refusal:
        api.replace(changed(stored, {path: fewer}))
    assert_refused(
        refusal.value.reasons, path, "never becomes smaller, because credentials that were revoked"
    )


def test_mode_and_bound_are_patched_together(api: StrictApi, folder: Path) -> None:
    manifest = changed(MANIFEST, {"metadata.name": "patched", "spec.pipeline.maxStaleness": 2})
    api.create(manifest, dry_run=False)
    words = "remove it, or set mode to BoundedAsync"
    with pytest.raises(ApiRefusal) as refusal:
        api.patch("RLJob", "patched", {"spec": {"pipeline": {"mode": "Streaming"}}})
    assert_refused(refusal.value.reasons, "spec.pipeline.maxStaleness", words)
    (error,) = refused(write(folder, manifest), "--set", "spec.pipeline.mode=Streaming")
    assert error.startswith("spec.pipeline.maxStaleness: ")
    assert words in error
    api.patch("RLJob", "patched", {"spec": {"pipeline": {"mode": "Streaming", "maxStaleness": None}}})


# The operator writes RolloutPools, and the command line never sees one.
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.replicas", -1, at_least(0).server),
        ("spec.config", ABSENT, REQUIRED.server),
        (
            "spec.job",
            "other",
            "is immutable, because its pods are selected by it: change it back, or delete this",
        ),
        (
            "spec.pool",
            "other",
            "is immutable, because its pods are selected by it: change it back, or delete this",
        ),
        ("spec.size", 2, "unknown field"),
    ],
)
def test_a_pool_is_refused(path: str, value: Any, words: str, api: StrictApi) -> None:
    assert RolloutPool.model_validate(POOL)
    pool = changed(POOL, {"metadata.name": f"sums-{path.rpartition('.')[2]}"})
    stored = api.create(pool, dry_run=False)
    with pytest.raises(ApiRefusal) as refusal:
        api.replace(changed(stored, {path: value}))
    assert_refused(refusal.value.reasons, path, words)


# An administrator writes Sites, and the command line never sees one.
SITE: Object = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "Site",
    "metadata": {"name": "refused"},
    "spec": {
        "domain": "east-1",
        "graceSeconds": 60,
        "link": {"bitsPerSecond": 100_000_000, "latencySeconds": 0.03, "pricePerGigabyte": "0.02"},
        "namespaces": ["*"],
        "poolLabels": {"gpu": "l40s"},
    },
}
SITES = [
    ("metadata.name", "East", said(LABEL.server)),
    (
        "metadata.name",
        "hub",
        said("hub is the cluster that the coordinator is in: give the Site another name"),
    ),
    (
        "spec.domain",
        "hub",
        said("domain hub is that of the hub's own NATS server: give the site's server another"),
    ),
    ("spec.domain", "east.1", said(LABEL.server)),
    ("spec.graceSeconds", -1, at_least(0)),
    ("spec.graceSeconds", 604_801, at_most(604_800)),
    ("spec.link.bitsPerSecond", 999, at_least(1000)),
    (
        "spec.link.bitsPerSecond",
        200_000,
        said("graceSeconds must be at least 16000000 divided by link.bitsPer"),
    ),
    ("spec.link.latencySeconds", -0.5, at_least(0)),
    ("spec.link.pricePerGigabyte", "2 USD", said("must be a decimal number as text, without a currency")),
    ("spec.namespaces", ["team-*"], said("must be the name of a namespace, or * for every namespace")),
    ("spec.poolLabels", {"gpu": "l40s!"}, said("must be the value of a label")),
]


@pytest.mark.parametrize(("path", "value", "reason"), SITES, ids=lambda value: str(value)[:30])
def test_a_site_is_refused(path: str, value: Any, reason: Reason, api: StrictApi) -> None:
    api.create(SITE)
    wrong = changed(SITE, {path: value})
    with pytest.raises(ValidationError):
        Site.model_validate(wrong)
    with pytest.raises(ApiRefusal) as refusal:
        api.create(wrong)
    assert any(reason.server in message for _, message in refusal.value.reasons), refusal.value.reasons


def test_every_rule_of_a_site_has_a_case() -> None:
    messages = {rule["message"] for rule in rules(crds()["sites.yaml"]) if "oldSelf" not in rule["rule"]}
    spec_only = {message for message in messages if not message.startswith("must be")}
    assert len(spec_only) == 3
    assert [m for m in messages if not any(reason.server in m for _, _, reason in SITES)] == []


# ------------------------------------------------------------------------------------------------- kubectl


def test_what_a_user_sees(here: Kubectl) -> None:
    text = json.dumps(changed(MANIFEST, {"metadata.name": "seen"}))
    assert "rljob.rljob.dev/seen created" in here("apply", "--filename=-", input_text=text)
    unknown_field = json.dumps(changed(MANIFEST, {"metadata.name": "seen", "spec.step": 4}))
    with pytest.raises(ClusterError, match=r'strict decoding error: unknown field "spec\.step"'):
        here("apply", "--validate=strict", "--filename=-", input_text=unknown_field)
    other_data = json.dumps(changed(MANIFEST, {"metadata.name": "seen", "spec.data.groupSize": 4}))
    with pytest.raises(
        ClusterError, match=r"spec\.data\.groupSize: .*: groupSize is immutable, because the led"
    ):
        here("replace", "--validate=strict", "--filename=-", input_text=other_data)


def test_the_crds_fit_into_client_side_apply(here: Kubectl) -> None:
    done = here("apply", "--dry-run=server", "--validate=strict", "--kustomize", str(REPOSITORY / "crds"))
    assert len(done.splitlines()) == len(crds())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("rljob.spec.pipeline", ["maxStaleness", "enum: Synchronous, Streaming, BoundedAsync"]),
        ("rljob.spec.rollout.pools", ["name\t<string> -required-", "scaling\t<Object>"]),
        ("rolloutpool.spec", ["config\t<string> -required-", "replicas\t<integer>"]),
        ("site.spec.link", ["bitsPerSecond\t<integer>", "pricePerGigabyte\t<string>"]),
    ],
)
def test_explain(path: str, words: list[str], here: Kubectl) -> None:
    text = here("explain", path)
    assert [word for word in words if word not in text] == []
