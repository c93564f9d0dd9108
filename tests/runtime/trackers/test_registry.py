"""Trackers by name: what is wrong in a manifest is said before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from installed import install

from rljob_core.errors import ResourceMissing, SpecError
from rljob_core.failures import Failure, Reason, failure_in
from rljob_core.messages import STEP_METRICS, StepMetrics, StepStats
from rljob_core.metrics_history import SeenLines
from rljob_core.ports import Message
from rljob_core.spec import TrackerSpec
from rljob_runtime.trackers import check_tracker
from rljob_runtime.trackers.points import points
from rljob_runtime.trackers.redaction import redacted

PATH = "spec.trackers[0]"


def check(name: str, **options: object) -> object:
    return check_tracker(TrackerSpec(name=name, options=options), path=PATH)


def test_an_unknown_tracker_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        SpecError, match=r"spec\.trackers\[0\]\.name: 'Wandb' is unknown: did you mean WandB\? write"
    ):
        check("Wandb")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "WandB",
            {"projekt": "x"},
            "options.projekt: unknown: did you mean project? tracker WandB has directory",
        ),
        (
            "WandB",
            {"mode": "disabled"},
            'options.mode: "disabled" is not possible: write one of online, offline',
        ),
        ("MLflow", {"trackingUri": 3}, "options.trackingUri: text is needed, not 3"),
        ("TensorBoard", {"project": "x"}, "options.project: unknown: tracker TensorBoard has directory"),
        ("Trackio", {"project": ""}, "options.project: must not be empty"),
    ],
)
def test_a_wrong_option_is_refused(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        check(name, **options)
    assert str(refused.value).startswith(f"{PATH}.{words}")
    assert not isinstance(refused.value, ResourceMissing)


@pytest.mark.parametrize("python", ["here", "elsewhere"])
def test_a_package_that_is_missing_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    assert find_spec("trackio") is None, "the trackers have an environment of their own"
    if python == "elsewhere":
        monkeypatch.setenv("RLJOB_TRACKER_PYTHON", sys.executable)
    with pytest.raises(ResourceMissing, match=r"trackers\[0\]\.name: .* pip install 'rljob\[trackio\]'"):
        check("Trackio")


@pytest.mark.parametrize(
    ("python", "why"), [("/nowhere/python", "No such file or directory"), ("/bin/ls", "exit code 2")]
)
def test_a_python_for_trackers_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, python: str, why: str
) -> None:
    monkeypatch.setenv("RLJOB_TRACKER_PYTHON", python)
    with pytest.raises(SpecError) as refused:
        check("Trackio")
    assert not isinstance(refused.value, ResourceMissing)
    assert str(refused.value).startswith(
        f"RLJOB_TRACKER_PYTHON: {python} does not start as a Python ({why}): name"
    )


def test_the_process_of_a_python_that_is_none_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLJOB_TRACKER_PYTHON", "/nowhere/python")
    monkeypatch.setenv("RLJOB_TERMINATION_LOG", str(tmp_path / "termination"))
    code = subprocess.run([sys.executable, "-m", "rljob_runtime.main", "tracker"], check=False).returncode
    assert code == 2
    said = "RLJOB_TRACKER_PYTHON: /nowhere/python does not start: No such file or directory"
    assert failure_in((tmp_path / "termination").read_text()) == Failure(Reason.INVALID_SPEC, said)


def test_what_trackers_are_sent_of_a_spec_has_no_secrets() -> None:
    env = [
        {"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "key=hidden-1"},
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    template = {"spec": {"containers": [{"name": "trainer", "image": "i:1", "env": env}]}}
    spec = {
        "steps": 3,
        "nats": {"url": "nats://me:hidden-2@a:4222,nats://hidden-3@b:4222"},
        "rollout": {"pools": [{"name": "p", "template": template}], "env": [{"name": "x", "value": "y"}]},
        "trainer": {"template": template, "options": {"hook": "see https://u:hidden@4@c/x?a=b@d"}},
    }
    found = redacted(spec)
    assert "hidden" not in json.dumps(found)
    assert found["nats"]["url"] == "nats://a:4222,nats://b:4222"
    assert found["trainer"]["options"]["hook"] == "see https://c/x?a=b@d"
    (container,) = found["rollout"]["pools"][0]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "***"}, env[1]]
    assert (container["image"], found["steps"]) == ("i:1", 3)
    assert found["rollout"]["env"] == spec["rollout"]["env"]
    assert redacted({"template": {"env": "text", "x": {"env": ["text"]}}}) == {
        "template": {"env": "***", "x": {"env": ["***"]}}
    }


def test_a_plug_in_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "def Mine(run, *, options): ...\nMine.missing = lambda: 'mine[all]'\n"
    monkeypatch.syspath_prepend(install(tmp_path / "path", "mine-tracker", code, trackers="Mine = Mine"))
    with pytest.raises(ResourceMissing, match=r"pip install 'mine\[all\]', or remove the tracker"):
        check("Mine")


def test_a_point_has_the_numbers_of_its_line() -> None:
    stats = StepStats(loss=-0.125, kl=0.5, staleness_max=2)
    line = StepMetrics(
        7,
        7,
        3.5,
        reward_mean=0.25,
        stats=stats,
        aborted={"Stale": 3},
        trajectories={"consumed": 9},
        failure=Failure(Reason.UNKNOWN, "x"),
    )
    (point,) = points(SeenLines(), Message(11, "steps", STEP_METRICS.dump_json(line)))
    assert (point.sequence, point.step, point.kind) == (11, 7, "commit")
    assert (
        point.values.items()
        >= {
            "train/reward_mean": 0.25,
            "train/loss": -0.125,
            "train/kl": 0.5,
            "train/staleness_max": 2.0,
            "job/seconds": 3.5,
            "job/aborted/Stale": 3.0,
            "job/trajectories/consumed": 9.0,
        }.items()
    )
    evaluation = StepMetrics(8, 4, 4.0, heldout_sampled=0.5, tokens_generated=100)
    (point,) = points(SeenLines(), Message(12, "steps", STEP_METRICS.dump_json(evaluation)))
    assert (point.step, point.kind) == (4, "evaluation")
    assert point.values["evaluation/heldout_sampled"] == 0.5
    assert {name.partition("/")[0] for name in point.values} == {"evaluation"}
