"""`rljob explain`: every field can be looked up, and what is said of it is what the models say."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from invocation import rljob

from rljob_cli.manifest.fields import KINDS, FieldEntry, tree
from rljob_core.spec import AlgorithmSpec

FIELDS = [(kind, field) for kind in KINDS for field in tree(kind).walk()]


_KEPT = "  kept:     it cannot be changed later, because the job's weights and checkpoints began with this"
_RULE = "  rule:     maxStaleness must be at least 1 with mode BoundedAsync: raise it, or set mode to"
_OPTION = "FIELD:    spec.rollout.engine.options.kvCacheGiB <number> of engine vLLM"


def explained(*arguments: str) -> str:
    ended = rljob("explain", *arguments)
    assert (ended.code, ended.errors) == (0, [])
    return ended.out


def refusal(path: str) -> str:
    ended = rljob("explain", path)
    assert (ended.code, ended.out, len(ended.errors)) == (2, "", 1)
    return ended.errors[0]


def one(path: str) -> FieldEntry:
    (found,) = [field for field in tree().walk() if field.path == path]
    return found


def test_a_field_with_its_type_default_meaning_and_names() -> None:
    said = explained("spec.algorithm.loss")
    assert said.startswith(
        "KIND:     RLJob\nVERSION:  rljob.dev/v1alpha1\n\nFIELD:    spec.algorithm.loss <string>\n\n  Loss of a token"
    )
    assert '  default:  "GRPO"\n  offered:  GRPO, DrGRPO, DAPO, GSPO, CISPO\n' in said
    assert one("spec.algorithm.learningRate").default == json.dumps(
        AlgorithmSpec.model_fields["learning_rate"].default
    )


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("spec.pipeline.mode", "  allowed:  Synchronous, Streaming, BoundedAsync"),
        ("spec.algorithm.clip", "  bounds:   more than 0, less than 1"),
        ("spec.steps", "  required"),
        ("spec.weights.transport", "  allowed:  Files, Nats"),
        ("spec.model.uri", _KEPT),
        ("spec.pipeline", _RULE),
        ("spec.pipeline", "  maxStaleness <integer>"),
        ("spec.rollout", "  pools <[]Object> -required-"),
        ("rollout.engine.options", "  of engine vLLM:"),
        ("rollout.engine.options.kvCacheGiB", _OPTION),
        ("spec.trainer.options.zeroStage", "  allowed:  1, 2, 3"),
        ("spec.rollout.pools[0].name", "FIELD:    spec.rollout.pools.name <string>"),
        ("algorithm.kl", "FIELD:    spec.algorithm.kl <number>"),
        ("status.conditions.reason", "FIELD:    status.conditions.reason <string>"),
        ("site.spec.link", "KIND:     Site"),
        ("rolloutpools.spec.replicas", "KIND:     RolloutPool"),
        ("", "FIELD:    the whole object <Object>"),
    ],
)  # fmt: skip
def test_what_is_said(path: str, line: str) -> None:
    assert line in explained(path).splitlines()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("spec.algorithm.los", "did you mean spec.algorithm.loss"),
        ("spec.pipeline.maxstaleness", "did you mean spec.pipeline.maxStaleness?"),
        ("max_staleness", "did you mean spec.pipeline.maxStaleness or status.pipeline.maxStaleness?"),
        ("spec.rollout.pool.replicas", "did you mean spec.rollout.pools.replicas or "),
        ("spec.trainer.qqq", ": spec.trainer has backend, numNodes, "),
        ("site.spec.lnk", "Site has no such field: did you mean spec.link?"),
    ],
)
def test_an_unknown_path_gets_the_nearest(path: str, message: str) -> None:
    said = refusal(path)
    assert said.startswith(f"error: {path}: ")
    assert message in said


def test_every_field_and_option_has_a_meaning_and_a_type() -> None:
    lacking = [(kind, field.path, field.owner) for kind, field in FIELDS if not field.description]
    # Kubernetes' own metadata.
    assert [found for found in lacking if not found[1].startswith("metadata.")] == []
    assert {field.type.removeprefix("[]") for _, field in FIELDS} <= {
        "string", "integer", "number", "boolean", "map", "Object", "integer or string", "boolean or string",
    }  # fmt: skip


def test_names_of_all_fields_and_json() -> None:
    listed = explained("spec.rollout", "--recursive")
    assert "    maxTokens <integer> (default 512)" in listed
    assert "minReplicas <integer> (default 1)" in listed
    (found,) = json.loads(explained("spec.pipeline.window", "--json"))
    assert (found["kind"], found["path"], found["type"], found["default"]) == (
        "RLJob", "spec.pipeline.window", "number", "0.75",
    )  # fmt: skip


def test_the_shell_completes_commands_and_fields() -> None:
    def completed(words: str) -> list[str]:
        asked = {"_RLJOB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        code = "import sys; sys.argv = ['rljob']; from rljob_cli.main import main; main()"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert completed("rljob comp") == ["compare"]
    assert completed("rljob explain spec.al") == ["spec.algorithm"]
