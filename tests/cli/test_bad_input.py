"""Every bad input: exit code 2, a message on stderr with the field's path, and nothing started or left behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from completions_server import Completions, serving
from example_job import write_job, write_model
from invocation import claimed, refused, rljob, snapshot
from tests.night import some

from rljob_cli.job_checks.nats_server import check_servers
from rljob_cli.manifest.documents import parse
from rljob_cli.manifest.load import load_job, override
from rljob_core.errors import SpecError

# --------------------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"step": 3}, "spec.step: unknown field: "),
        (
            {"pipeline": {"maxStalenes": 2}},
            "spec.pipeline.maxStalenes: unknown field: did you mean maxStaleness?",
        ),
        (
            {"pipeline": {"max_staleness": 2}},
            "spec.pipeline.max_staleness: unknown field: did you mean maxStaleness?",
        ),
        ({"steps": "16"}, 'spec.steps: a whole number is needed, not "16": write it without quotes'),
        (
            {"algorithm": {"learningRate": "1e-4"}},
            'spec.algorithm.learningRate: a number is needed, not "1e-4": ',
        ),
        ({"algorithm": {"clip": True}}, "spec.algorithm.clip: a number is needed, not true"),
        ({"steps": 1.5}, "spec.steps: a whole number is needed, not 1.5"),
        ({"suspend": "no"}, 'spec.suspend: true or false is needed, not "no"'),
        ({"steps": None}, "spec.steps: is required. Optimizer steps that the job trains."),
        ({"steps": 0}, "spec.steps: must be at least 1, not 0"),
        ({"algorithm": {"clip": 1}}, "spec.algorithm.clip: must be less than 1, not 1"),
        ({"pipeline": {"maxStaleness": 65}}, "spec.pipeline.maxStaleness: must be at most 64, not 65"),
        ({"reward": {"functions": []}}, "spec.reward.functions: must have at least 1 item"),
        (
            {"pipeline": {"mode": "Boundedasync"}},
            (
                'spec.pipeline.mode: "Boundedasync" is not possible: did you mean BoundedAsync? '
                "write one of Synchronous, Streaming, BoundedAsync"
            ),
        ),
        (
            {"pipeline": {"mode": "Streaming", "maxStaleness": 2}},
            (
                "spec.pipeline.maxStaleness: maxStaleness must be 0 with mode Synchronous or Streaming: "
                "remove it, or set mode to BoundedAsync"
            ),
        ),
        (
            {
                "rollout": {
                    "pools": [{"name": "a"}, {"name": "b", "replicas": 2, "scaling": {"maxReplicas": 4}}]
                }
            },
            (
                "spec.rollout.pools[1].scaling: replicas and scaling exclude each other: "
                "keep replicas for a fixed number, or scaling to let an autoscaler set it"
            ),
        ),
        (
            {"rollout": {"pools": [{"name": "a"}, {"name": "a"}]}},
            "spec.rollout.pools: pool names must differ",
        ),
        (
            {"rollout": {"pools": [{"name": "No Name"}]}},
            'spec.rollout.pools[0].name: "No Name": must be a name of lower-case letters, ',
        ),
    ],
)
def test_fields(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    file = write_job(tmp_path, **spec)
    (error,) = refused(file)
    assert error.startswith(message)
    assert "(job.yaml, line " in error


def test_tells_all_wrong_fields_at_once(tmp_path: Path) -> None:
    file = write_job(tmp_path, steps=0, data={"dataset": 3}, trainer={"backend": ""})
    errors = refused(file)
    assert [error.partition(": ")[0] for error in errors] == [
        "spec.steps",
        "spec.data.dataset",
        "spec.trainer.backend",
    ]


def test_names_the_line_of_the_field(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\nspec:\n  steps: 0\n"
        "  model: {uri: m}\n  data: {dataset: chain_sum}\n  rollout:\n    pools:\n    - name: a\n    - replicas: -1\n"
    )
    assert refused(file) == [
        "spec.steps: must be at least 1, not 0 (job.yaml, line 5)",
        "spec.rollout.pools[1].name: is required. Name of the pool, unique in the job. (job.yaml, line 11)",
        "spec.rollout.pools[1].replicas: must be at least 0, not -1 (job.yaml, line 11)",
    ]


# ----------------------------------------------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "line 2, column 2: not YAML: "),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key a is given twice"),
        ("a: 1\n---\nb: 2\n", "line 3, column 1: a second document begins here: keep one RLJob per file"),
        ("", "line 1, column 1: the file is empty: write a mapping"),
        ("- a\n", "line 1, column 1: the document is a list: write a mapping"),
        ("just words\n", "line 1, column 1: the document is a str: write a mapping"),
        ("a: \x07\n", "not YAML: "),
    ],
)
def test_unreadable_yaml(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    (error,) = refused(file)
    assert error.startswith(f"{file}: {message}")


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    (error,) = refused(tmp_path / "job.yaml")
    assert error == f"{tmp_path}/job.yaml: there is no such file: give the path of an RLJob's YAML file"
    (tmp_path / "job.yaml").write_bytes(b"a: \xff\n")
    (error,) = refused(tmp_path / "job.yaml")
    assert error == f"{tmp_path}/job.yaml: byte 3 is not UTF-8: save the file as UTF-8 text"
    (tmp_path / "folder").mkdir()  # not `tmp_path`: what is beside it is not this test's
    (error,) = refused(tmp_path / "folder")
    assert error == f"{tmp_path}/folder: cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec.steps", "--set: 'spec.steps': write path=value"),
        ("spec=3", "--set: 'spec=3': write path=value"),
        ("kind=Job", "--set: 'kind=Job': write path=value"),
        (
            "steps=zero",
            'spec.steps: a whole number is needed, not "zero". Optimizer steps that the job trains.',
        ),
        ("sepc.steps=3", "--set: 'sepc.steps=3': did you mean spec.steps?"),
        (
            "sampling.maxTokens=1",
            "--set: 'sampling.maxTokens=1': did you mean spec.rollout.sampling.maxTokens?",
        ),
        (
            "slots=3",
            "--set: 'slots=3': did you mean spec.rollout.engine.options.slots or spec.rollout.pools.NAME.engine",
        ),
        ("spec.steps=zero", 'spec.steps: a whole number is needed, not "zero"'),
        (
            "spec.pipelin.mode=Streaming",
            "spec.pipelin: unknown field: did you mean pipeline? (given by --set)",
        ),
        (
            "pipeline.mode=streaming",
            'spec.pipeline.mode: "streaming" is not possible: did you mean Streaming? write one of ',
        ),
        ("rollout.engine.name=vllm", "spec.rollout.engine.name: 'vllm' is unknown: did you mean vLLM? "),
        ("algorithm.loss=dapo", "spec.algorithm.loss: 'dapo' is unknown: did you mean DAPO? "),
        ("trainer.backend=fsdp", "spec.trainer.backend: 'fsdp' is unknown: did you mean FSDP? "),
        (
            "spec.rollout.pools.gpu.replicas=3",
            "--set spec.rollout.pools.gpu.replicas: the list has no item 'gpu'",
        ),
        ("spec.rollout.pools.7.replicas=3", "--set spec.rollout.pools.7.replicas: the list has no item '7'"),
        ("spec.steps.more=3", "--set spec.steps.more: what stands before 'more' has no fields"),
        ("spec.steps=[1", "--set spec.steps: line 1, column 3: not YAML: "),
    ],
)
def test_overrides(tmp_path: Path, text: str, message: str) -> None:
    (error,) = refused(write_job(tmp_path), "--set", text)
    assert error.startswith(message)


# ----------------------------------------------------------------------------------- what the fields point to


def test_a_model_folder_that_is_missing(tmp_path: Path) -> None:
    file = write_job(tmp_path, model={"uri": "models/none"})
    (error,) = refused(file)
    assert error == (
        f"spec.model.uri: there is no folder {tmp_path}/models/none: give the folder of a Hugging Face model"
    )
    (tmp_path / "models" / "none").mkdir(parents=True)
    (error,) = refused(file)
    assert (
        error == f"spec.model.uri: {tmp_path}/models/none holds no Hugging Face model: config.json is missing"
    )


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification"),
        ({"architectures": None, "model_type": "t5"}, "of type t5"),
    ],
)
def test_a_model_that_is_not_a_causal_lm(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    write_model(tmp_path / "model", **config)
    (error,) = refused(write_job(tmp_path))
    assert error.startswith(f"spec.model.uri: {tmp_path}/model holds no causal language model ({what})")


def test_a_model_without_tokenizer_or_weights(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    (tmp_path / "model" / "tokenizer.json").unlink()
    (error,) = refused(file)
    assert error.startswith(f"spec.model.uri: {tmp_path}/model has no tokenizer.json")
    (tmp_path / "model" / "model.safetensors").unlink()
    (error,) = refused(file)
    assert error.startswith(f"spec.model.uri: {tmp_path}/model holds no weights")


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        ({"data": {"dataset": "chain_sun"}}, "spec.data.dataset", "chain_sum"),
        ({"data": {"dataset": "none.jsonl", "source": "jsonl"}}, "spec.data.dataset", "{folder}/none.jsonl"),
        (
            {"data": {"dataset": "chain_sum", "promptTemplate": "{{ qestion }}"}},
            "spec.data.promptTemplate",
            "qestion",
        ),
        ({"reward": {"functions": ["exact_mach"]}}, "spec.reward.functions[0]", "exact_match"),
        ({"reward": {"functions": ["no_such_module:score"]}}, "spec.reward.functions[0]", "no_such_module"),
        (
            {"rollout": {"engine": {"name": "Torsh"}, "pools": [{"name": "a"}]}},
            "spec.rollout.engine.name",
            "Torch",
        ),
        (
            {"rollout": {"engine": {"options": {"slot": 3}}, "pools": [{"name": "a"}]}},
            "spec.rollout.engine.options.slot",
            "slots",
        ),
        ({"trainer": {"backend": "Torsh"}}, "spec.trainer.backend", "Torch"),
        ({"algorithm": {"loss": "GRPA"}}, "spec.algorithm.loss", "did you mean GRPO?"),
        ({"suspend": True}, "spec.suspend", "--set spec.suspend=false"),
        ({"rollout": {"pools": [{"name": "a", "replicas": 0}]}}, "spec.rollout.pools", "1 or more"),
        ({"weights": {"uri": "gs://bucket/weights"}}, "spec.weights.uri", "gs://"),
    ],
)
def test_names_that_nothing_has(tmp_path: Path, spec: dict[str, Any], path: str, words: str) -> None:
    (error,) = refused(write_job(tmp_path, **spec))
    assert error.startswith(f"{path}: ")
    assert words.format(folder=tmp_path) in error


@pytest.mark.parametrize(
    ("text", "words"),
    some(
        [
            ("import os; print('no licence'); os._exit(3)", "exit code 3"),
            ("import ctypes; ctypes.string_at(0)", "exit code 139 (SIGSEGV)"),
            ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ],
        1,
    ),
)
def test_a_reward_module_that_ends_what_imports_it(tmp_path: Path, text: str, words: str) -> None:
    """It ends a process that loads it on trial, not the command."""
    name = tmp_path.name  # of its own: folders of earlier tests are on the path, too
    (tmp_path / f"{name}.py").write_text(text)
    (error,) = refused(write_job(tmp_path, reward={"functions": ["exact_match", f"{name}:score"]}))
    assert error.startswith(f"spec.reward.functions[1]: {name} ")
    assert words in error


@pytest.mark.parametrize(
    ("spec", "problems"),
    [
        (
            {
                "rollout": {
                    "engine": {"name": "vLLM", "options": {"tensorParallelSize": 3}},
                    "pools": [{"name": "a"}],
                }
            },
            {
                "spec.rollout.engine.options.tensorParallelSize": "3 does not divide the model's 4 attention heads"
            },
        ),
        (
            {
                "rollout": {
                    "engine": {"name": "vLLM", "options": {"maxLength": 1025}},
                    "pools": [
                        {"name": "a", "engine": {"options": {"maxLength": 1024}}},
                        {"name": "b", "engine": {"options": {"tensorParallelSize": 8, "maxLength": 600}}},
                        {"name": "c"},
                        {"name": "d"},
                    ],
                },
            },
            {
                "spec.rollout.pools[1].engine.options.tensorParallelSize": "write one of 1, 2, 4",
                "spec.rollout.engine.options.maxLength": "1025 is beyond the model's context of 1024 tokens",
            },
        ),
        (
            {
                "rollout": {
                    "engine": {"options": {"slots": 4}},
                    "pools": [{"name": "a"}, {"name": "b", "engine": {"options": {"slot": 4}}}],
                }
            },
            {
                "spec.rollout.pools[1].engine.options.slot": "unknown: did you mean slots? engine Torch has slots"
            },
        ),
        (
            {"rollout": {"engine": {"options": {"maxLength": 2000}}, "pools": [{"name": "a"}]}},
            {"spec.rollout.engine.options.maxLength": "2000 is beyond"},
        ),
        (
            {"rollout": {"sampling": {"maxTokens": 1024}, "pools": [{"name": "a"}]}},
            {"spec.rollout.sampling.maxTokens": "1024 leaves no room for a prompt"},
        ),
        (
            {
                "rollout": {
                    "engine": {"name": "vLLM", "options": {"slots": 8, "maxBatchedTokens": 7}},
                    "pools": [{"name": "a"}],
                }
            },
            {"spec.rollout.engine.options.maxBatchedTokens": "write at least 8, or lower slots"},
        ),
        (
            {"rollout": {"engine": {"name": "HTTP"}, "pools": [{"name": "a"}]}},
            {"spec.rollout.engine.options.url": "is required. "},
        ),
        (
            {
                "rollout": {
                    "engine": {"name": "HTTP", "options": {"url": "http://server:8000"}},
                    "pools": [
                        {"name": "a", "replicas": 2},
                        {"name": "b", "replicas": 0},
                        {
                            "name": "c",
                            "scaling": {"maxReplicas": 3},
                            "engine": {"options": {"url": "http://other"}},
                        },
                        {"name": "d", "engine": {"options": {"url": "http://OTHER:80/"}}},
                        {"name": "e", "engine": {"options": {"weights": "Publish"}}},
                        {
                            "name": "f",
                            "replicas": 9,
                            "engine": {"options": {"url": "http://fed", "weights": "Publish"}},
                        },
                        {
                            "name": "g",
                            "engine": {"options": {"url": "http://fed", "weights": "Publish"}},
                        },
                    ],
                }
            },
            {
                "spec.rollout.pools[0].replicas": "2 replicas would replace the weights of one server",
                "spec.rollout.pools[2].scaling.maxReplicas": "give each its own pool and url, or",
                "spec.rollout.pools[3].engine.options.url": "pool d has the server of a pool before it",
                "spec.rollout.engine.options.url": "pool e has the server of a pool before it",
            },
        ),
        (
            {
                "rollout": {
                    "engine": {"name": "HTTP", "options": {"url": "http://me:secret@server:8000"}},
                    "pools": [{"name": "a"}],
                }
            },
            {"spec.rollout.engine.options.url": "name the environment variable that has the server's key"},
        ),
        (
            {
                "rollout": {
                    "engine": {"name": "HTTP", "options": {"url": "http://server:port"}},
                    "pools": [{"name": "a"}, {"name": "b"}],
                }
            },
            {"spec.rollout.engine.options.url": "no URL of a server: Port could not be cast"},
        ),
        (
            {"model": {"uri": "model", "lora": {"rank": 9}}},
            {"spec.model.lora.rank": "9 is above 4, the smallest size of a layer"},
        ),
        (
            {"trainer": {"backend": "FSDP", "numProcPerNode": 5}},
            {"spec.trainer.numProcPerNode": "5 ranks would share 4 trajectories a step"},
        ),
    ],
)
def test_what_the_model_or_the_batch_cannot_take(
    tmp_path: Path, spec: dict[str, Any], problems: dict[str, str]
) -> None:
    file = write_job(tmp_path, **spec)
    errors = dict(error.split(": ", 1) for error in refused(file))
    assert errors.keys() == problems.keys()
    for path, words in problems.items():
        assert words in errors[path]
    validated = rljob("validate", file)
    assert validated.code == 2
    assert dict(line.removeprefix("error: ").split(": ", 1) for line in validated.errors) == errors


@pytest.mark.parametrize(
    "engine", [{}, {"name": "vLLM"}, {"name": "HTTP", "options": {"url": "http://server"}}]
)
def test_a_tokenizer_of_another_model(tmp_path: Path, engine: dict[str, Any]) -> None:
    write_model(tmp_path / "model", vocab_size=1)
    rollout = {"engine": engine, "pools": [{"name": "a"}, {"name": "b"}]}
    (error,) = refused(write_job(tmp_path, rollout=rollout))
    assert error.startswith(f"spec.model.uri: the tokenizer in {tmp_path}/model writes token ids up to 1")
    assert "resize them" in error


def test_an_engine_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # Python's own way to say that there is none
    rollout = {
        "engine": {"name": "vLLM"},
        "pools": [{"name": "a"}, {"name": "b"}],
    }
    (error,) = refused(write_job(tmp_path, rollout=rollout))
    assert error.startswith(
        "spec.rollout.engine.name: vLLM is not installed: install rljob[vllm] on machines with"
    )


def test_a_server_that_lacks_what_training_needs(tmp_path: Path) -> None:
    file = write_job(tmp_path, rollout={"engine": {"name": "HTTP"}, "pools": [{"name": "a"}, {"name": "b"}]})
    with (
        answering(Completions()) as good,
        answering(Completions()) as too,
        answering(Completions(logprobs=False)) as silent,
    ):
        options = f"{{url: {good.url}, reloadPath: /load}}"
        whole = ["--set", f"spec.rollout.engine.options={options}"]
        whole += ["--set", f"spec.rollout.pools.b.engine.options.url={too.url}"]
        assert rljob("validate", file, *whole).code == 0
        (error,) = refused(file, *whole, "--set", f"spec.rollout.pools.b.engine.options.url={silent.url}")
        assert error.startswith(
            "spec.rollout.pools[1].engine.options.url: the server sends no log-probabilities"
        )
        (error,) = refused(file, *whole, "--set", "spec.rollout.engine.options.model=other")
        assert error.startswith("spec.rollout.engine.options.model: the server has counting, and no 'other'")
        (error,) = refused(file, *whole, "--set", "spec.rollout.engine.options.versionPath=/none")
        assert error.startswith(
            "spec.rollout.engine.options.weights: the server does not tell or take versions"
        )
        assert good.loaded == []


@pytest.mark.nightly
def test_a_server_that_cannot_be_asked_from_here_is_not_refused(tmp_path: Path) -> None:
    file = write_job(tmp_path, rollout={"engine": {"name": "HTTP"}, "pools": [{"name": "a"}]})
    with socket.socket() as unused, answering(Completions(refusals=10**9)) as busy:
        unused.bind(("127.0.0.1", 0))  # and never listens
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for options in (
            f"{{url: {nobody}}}",
            f"{{url: {busy.url}, reloadPath: /load}}",
            f"{{url: {busy.url}/elsewhere}}",  # what answers there is no completions server
            f"{{url: {busy.url}, apiKeyVariable: A_KEY_THAT_PODS_HAVE}}",
        ):
            validated = rljob("validate", file, "--set", f"spec.rollout.engine.options={options}")
            assert (validated.code, validated.errors) == (0, [])


@contextmanager
def answering(server: Completions) -> Iterator[Completions]:
    """Serve it from another thread while the command runs in this one."""
    with asyncio.Runner() as runner:
        serves = serving(server)
        thread = threading.Thread(target=runner.get_loop().run_forever)
        runner.run(serves.__aenter__())
        thread.start()
        try:
            yield server
        finally:
            runner.get_loop().call_soon_threadsafe(runner.get_loop().stop)
            thread.join()
            runner.run(serves.__aexit__(None, None, None))


def test_all_wrong_names_at_once_and_by_validate_too(tmp_path: Path) -> None:
    file = write_job(
        tmp_path, data={"dataset": "chain_sun"}, trainer={"backend": "Torsh"}, model={"uri": "none"}
    )
    errors = refused(file)
    assert [error.partition(":")[0] for error in errors] == [
        "spec.model.uri",
        "spec.trainer.backend",
        "spec.data.dataset",
    ]
    validated = rljob("validate", file)
    assert validated.code == 2
    assert [line.removeprefix("error: ") for line in validated.errors] == errors


def test_validate_accepts_what_would_run(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    before = snapshot(tmp_path)
    ended = rljob("validate", file, "--set", "spec.rollout.pools.cpu.replicas=3")
    assert (ended.code, ended.out, ended.errors) == (0, f"{file}: RLJob sums is valid\n", [])
    assert snapshot(tmp_path) == before


# ------------------------------------------------------------------------------------------------ the network


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (error,) = refused(write_job(tmp_path), "--nats-port", str(port))
    assert error.startswith(f"--nats-port: port {port} is in use: choose another")


def test_a_nats_server_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and never listens
        port = unused.getsockname()[1]
        (error,) = refused(write_job(tmp_path, nats={"url": f"nats://127.0.0.1:{port}"}))
        many = ",".join(f"nats://127.0.0.1:{each}" for each in (port, port))
        (none_of_them,) = refused(write_job(tmp_path, nats={"url": many}))
    assert error.startswith(f"spec.nats.url: no nats-server answers at 127.0.0.1:{port}")
    assert none_of_them.count(f"127.0.0.1:{port}") == 2


def test_sites_beside_a_server_of_the_users_own(tmp_path: Path) -> None:
    file = write_job(tmp_path, nats={"url": "nats://127.0.0.1:4222"})
    (error,) = refused(file, "--set", "spec.rollout.pools.cpu.site=west")
    assert error.startswith("spec.nats.url: rljob run starts the servers of sites beside its own only")


def test_a_site_that_comes_to_a_run_under_way(tmp_path: Path) -> None:
    pools = [{"name": "a", "site": "west"}, {"name": "b", "site": "east"}, {"name": "c"}]
    job = load_job(write_job(tmp_path, rollout={"pools": pools}))
    check_servers(job, {"west", "east"})
    with pytest.raises(SpecError, match=r"^spec\.rollout\.pools: no server of site east runs: stop the run"):
        check_servers(job, {"west"})


# ------------------------------------------------------------------------------------------------- the folder


def test_an_output_folder_that_holds_another_job(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    claimed(file, name="other")
    for flags in ([], ["--resume"]):
        (error,) = refused(file, *flags)
        assert error == f"--output: {tmp_path}/out holds another job, other: choose another folder"


def test_an_output_folder_that_holds_this_job_with_other_settings(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    folder = claimed(file)
    (error,) = refused(file, "--resume", "--set", "spec.data.groupSize=4", "--set", "spec.algorithm.clip=0.1")
    assert error == (
        "spec.data.groupSize: groupSize is immutable, because the ledger numbers the prompts of this data: change it "
        f"back, or choose another --output; the job in {folder.path} was started with 2, not 4"
    )


def test_an_output_folder_that_holds_this_job_already(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    claimed(file)
    (error,) = refused(file)
    assert error.startswith(f"--output: {tmp_path}/out holds a run of this job: add --resume to continue it")


def test_an_output_folder_that_holds_other_files(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    (error,) = refused(file)
    assert error.startswith(f"--output: {tmp_path}/out holds other files (thesis.tex)")


def test_an_output_folder_is_checked_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    file = write_job(tmp_path, model={"uri": "hf://acme/sums"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    (error,) = refused(file)
    assert error.startswith(f"--output: {tmp_path}/out holds other files (thesis.tex)")


def test_an_output_folder_that_another_process_uses(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    folder = claimed(file)
    (folder.nats / "store" / "jetstream" / "stream").mkdir(parents=True)
    with folder.locked():
        ended = rljob("run", file, "--output", folder.path, "--resume")
    assert ended.code == 2
    assert ended.errors == [f"error: --output: {folder.path} is in use by process {os.getpid()}"]


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    (tmp_path / "file").touch()
    (error,) = refused(file, output=tmp_path / "file" / "out")
    assert error == f"--output: {tmp_path}/file is a file: choose another folder"
    (error,) = refused(file, output=Path("/proc/self/out"))
    assert error.startswith("--output: /proc/")
    assert "cannot be written" in error


def test_resume_without_a_run_or_without_a_checkpoint(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    (error,) = refused(file, "--resume")
    assert error == f"--resume: {tmp_path}/out holds no run: remove --resume to start one"
    (claimed(file).trainer / "attempt-1.jsonl").touch()  # it has trained
    (error,) = refused(file, "--resume")
    assert error.startswith(
        f"--resume: the ledger of this job, {tmp_path}/out/nats/store, is gone, and there are neither"
    )
    assert "remove" not in error
    checkpoint = tmp_path / "out" / "checkpoints" / "step-000007"
    checkpoint.mkdir()
    (checkpoint / "checkpoint.json").write_text("{}")
    (error,) = refused(file, "--resume")
    assert f"--output {tmp_path}/out-2 --set spec.model.uri={checkpoint} instead of --resume" in error


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    folder = claimed(file)
    write_model(tmp_path / "larger", hidden=16)
    (error,) = refused(file, "--resume", "--set", f"spec.model.uri={tmp_path}/larger")
    assert error == (
        f"spec.model.uri: {folder.path} holds checkpoints of another model ({tmp_path}/model): "
        "choose another --output"
    )
    # The same, where only the checkpoint itself tells.
    (folder.nats / "store" / "jetstream" / "stream").mkdir(parents=True)
    checkpoint = folder.checkpoints / "step-000001"
    checkpoint.mkdir()
    (checkpoint / "checkpoint.json").write_text('{"version": 1, "attempt": 1, "model": "another"}')
    (error,) = refused(file, "--resume")
    assert error.startswith("spec.model.uri: ")
    assert "was made from another model" in error


def test_a_checkpoint_folder_that_another_job_uses(tmp_path: Path) -> None:
    (tmp_path / "shared" / "step-000001").mkdir(parents=True)
    (error,) = refused(write_job(tmp_path, trainer={"checkpoint": {"uri": "shared"}}))
    assert error.startswith(f"spec.trainer.checkpoint.uri: {tmp_path}/shared holds what another job stored")


def test_streams_on_another_server(tmp_path: Path, nats_server: Any) -> None:
    file = write_job(tmp_path)
    claimed(file)
    (error,) = refused(file, "--resume", "--set", f"spec.nats.url={nats_server.url}")
    assert error == "spec.nats.url: the streams of this job are on the embedded server: remove it"


# ----------------------------------------------------------------------------------------------- the command


def test_as_a_command_of_its_own(tmp_path: Path) -> None:
    file = write_job(tmp_path, steps="16")
    command = Path(sys.executable).with_name("rljob")
    ended = subprocess.run([command, "run", file], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith('error: spec.steps: a whole number is needed, not "16"')
    assert not (tmp_path / "runs").exists()


def test_wrong_usage_is_bad_input_too() -> None:
    assert rljob("run").code == 2
    assert rljob("run", "job.yaml", "--no-such-flag").code == 2
    assert rljob("no-such-command").code == 2


def test_version_and_help() -> None:
    version = rljob("--version")
    assert (version.code, version.out.split()[0]) == (0, "rljob")
    for arguments in (["--help"], ["run", "--help"], ["validate", "--help"], ["audit", "--help"]):
        said = rljob(*arguments)
        assert said.code == 0
        assert "Examples" in said.out
        assert f"rljob {arguments[0] if len(arguments) > 1 else 'run'}" in said.out


def test_audit_of_something_else(tmp_path: Path) -> None:
    ended = rljob("audit", tmp_path)
    assert ended.code == 2
    assert ended.errors == [f"error: {tmp_path}: is not an output folder of rljob run: it has no job.json"]
    assert list(tmp_path.iterdir()) == []


_ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(9 * [f'*{old}'])}]\n" for old, new in pairwise("abcdefghijkl")
)
_MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join(9 * [f'*{old}'])}]}}\n" for old, new in pairwise("abcdefghijkl")
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_ALIASES, "stands for more than"),
        (_MERGES, "stands for more than"),
        ("a: &a [*a]", "stands for more than"),
        ("&a {<<: *a}", "stands for more than"),
        (2000 * "[" + 2000 * "]", "nested too deeply"),
        ("a: 2001-99-99", "a value cannot be read"),
        ("a: " + 5000 * "1", "a value cannot be read"),
        ("? 0x" + 5000 * "f" + "\n: 1", "a value cannot be read"),
        ("a: !!set {? 0x" + 5000 * "f" + "}", "a value cannot be read"),
    ],
    ids=[
        "aliases",
        "merges",
        "endless",
        "endless merge",
        "deep",
        "date",
        "long number",
        "long key",
        "long in set",
    ],
)
def test_hostile_yaml_costs_a_message(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse(text, "job.yaml")


def test_an_index_of_any_length_is_one_that_the_list_has_not() -> None:
    with pytest.raises(SpecError, match="the list has no item '9999"):
        override({"spec": {"pools": [{}]}}, f"spec.pools.{5000 * '9'}.replicas=3")


def test_what_json_lacks_becomes_text() -> None:
    ((_, found),) = parse("{1: 2001-01-01, b: !!set {x}, c: 0x" + 5000 * "f" + "}", "job.yaml")
    assert found["1"] == "2001-01-01"
    assert found["c"] == "a number of 20,000 bits"
    assert json.loads(json.dumps(found)) == found
