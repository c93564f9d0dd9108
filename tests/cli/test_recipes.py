"""Every manifest of manifests/examples is a job that rljob knows: fields, engine, backend and their options, loss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_runtime.engines.registry import check_engine
from rljob_runtime.training.losses.registry import check_loss
from rljob_runtime.training.registry import check_backend

CHECKOUT = Path(__file__).parents[2]
FILES = sorted((CHECKOUT / "manifests/examples").glob("*.yaml"))
JOBS = [file for file in FILES if "kind: RLJob" in file.read_text()]
PAGE = (CHECKOUT / "docs/examples.md").read_text()
DEFAULTS = ClusterDefaults(
    nats_url="nats://nats:4222",
    weights_uri="pvc://rljob/weights",
    checkpoint_uri="pvc://rljob/checkpoints",
    trainer_log_uri="",
    per_job=True,
    containers=True,  # as the operator has it on a cluster
    issuer=issuer(Seeds.complete({}, bytes)),
)


def job_of(file: Path) -> RLJob:
    (found,) = [doc for doc in YAML(typ="safe").load_all(file.read_text()) if doc["kind"] == "RLJob"]
    found["metadata"]["uid"] = "u-1"  # of which credentials and keys are made
    return RLJob.model_validate(found, by_alias=True, by_name=False)


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_a_recipe_names_what_exists(file: Path) -> None:
    job = job_of(file)
    assert job.metadata.name == file.stem or file.stem in {"two-pools", "http-engine", "autoscaling"}
    config = resolve_job(job, DEFAULTS).config
    for pool in config.spec.rollout.pools:
        options = check_engine(config.spec.rollout.engine.name, config.engine_options(pool.name))
        if options.__class__.__name__ == "VllmEngineOptions" and options.max_length is not None:
            assert options.max_length > job.spec.rollout.sampling.max_tokens, "no room for a prompt"
    check_backend(job.spec)
    check_loss(job.spec)
    assert desired(resolve_job(job, DEFAULTS), Targets(attempt=1, failures=0, pools={}))
    if job.spec.algorithm.loss == "GSPO":
        assert job.spec.algorithm.clip < 0.01


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_page_has_it(file: Path) -> None:
    assert f"(../manifests/examples/{file.name})" in PAGE


@pytest.mark.parametrize(
    "file", [f for f in JOBS if "kind: ConfigMap" in f.read_text()], ids=lambda file: file.stem
)
def test_a_reward_in_a_config_map_is_the_function_that_is_named(file: Path) -> None:
    documents = list(YAML(typ="safe").load_all(file.read_text()))
    (config_map,) = [document for document in documents if document["kind"] == "ConfigMap"]
    ((name, source),) = config_map["data"].items()
    (function,) = job_of(file).spec.reward.functions
    module, _, attribute = function.partition(":")
    assert name == f"{module}.py"
    namespace: dict[str, object] = {}
    exec(compile(source, name, "exec"), namespace)
    score = namespace[attribute]
    if "final" in attribute:
        item = {"answer": 4}
        said = [score(completion=text, item=item) for text in ("so #### 4", "#### 5", "4")]  # type: ignore[operator]
        assert said == [1.0, 0.1, 0.0]


def test_a_gang_has_a_gpu_for_each_rank() -> None:
    checked = 0
    for file in JOBS:
        trainer = job_of(file).spec.trainer
        limits = re.findall(r"nvidia.com/gpu': (\d+)", str(trainer.template))
        if limits:
            assert [int(limit) for limit in limits] == [trainer.num_proc_per_node], file.name
            checked += 1
    assert checked >= 8
    with pytest.raises(SpecError):
        check_engine("vllm", {})
