"""`rljob simulate`: bad words are refused by name, fleets and sweeps are compared, emulated jobs need no words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rljob_cli.commands import app

MANIFEST = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: sums}}
spec:
  steps: 100
  model: {{uri: model}}
  data: {{dataset: chain_sum, promptsPerStep: 4, groupSize: 2}}
  rollout:
    engine: {engine}
    pools: [{{name: fast, replicas: 2}}]
  trainer: {trainer}
"""
EMULATED = "{name: Emulated, options: {slots: 4, lengths: {median: 50, max: 200}}}"
EMULATED_TRAINER = "{backend: Emulated, options: {secondsPerToken: 0.001}}"
LENGTHS = "--lengths=median=50,max=200"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(MANIFEST.format(engine="{name: vLLM}", trainer="{backend: FSDP}"))
    return file


def simulate(job: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["simulate", str(job), "--steps=4", *words])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_an_emulated_job_has_its_own_engines_trainer_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(MANIFEST.format(engine=EMULATED, trainer=EMULATED_TRAINER))
    (found,) = lines(simulate(file, "--json"))
    assert found["engines"] == "2 fast"
    assert found["steps"] == 4
    assert 0 < found["staleness_mean"] <= found["staleness_max"] == 1
    slower = lines(simulate(file, "--json", "--set=spec.rollout.engine.options.stepSeconds=0.1"))
    assert slower[0]["seconds_per_step"] > 2 * found["seconds_per_step"]


def test_fleets_and_values_are_combined(job: Path) -> None:
    found = lines(
        simulate(
            job, "--json", LENGTHS, "--trainer=secondsPerToken=1e-5", "--price=h100=2,l40s=1,trainer=10",
            "--engines=h100=1", "--engines=h100=1,l40s=2", "--sweep=spec.data.promptsPerStep=4,8",
        )
    )  # fmt: skip
    assert [(row["engines"], row["spec.data.promptsPerStep"]) for row in found] == [
        ("1 h100", "4"), ("1 h100", "8"), ("1 h100, 2 l40s", "4"), ("1 h100, 2 l40s", "8"),
    ]  # fmt: skip
    assert [row["cost_per_hour"] for row in found] == [12.0, 12.0, 14.0, 14.0]
    for row in found:
        seconds = 1e6 / row["tokens_per_second"]
        assert row["cost_per_million_tokens"] == pytest.approx(row["cost_per_hour"] * seconds / 3600)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--engines: the job's engine vLLM has no profile"),
        (["--engines=a100=2"], "--engines: a100 is not a known device: name one of h100, h20, l40s"),
        (["--engines=h100"], "--engines: 'h100' is not name=number"),
        (["--engines=h100=1.5"], "--engines: h100=1.5 is not a number of engines"),
        (["--engines=h20@east=2", "--trainer=secondsPerToken=1"], "--engines: the link to east is unknown"),
        (["--engines=h100=0"], "--engines: h100=0 is not a number of engines"),
        (["--engines=h100=1"], "--trainer: nothing says how long the backend FSDP takes for a token"),
        (["--engines=h100=1", "--trainer=seconds=1"], "--trainer: seconds: it has secondsPerToken"),
        (["--engines=h100=1", "--trainer=secondsPerToken=-1"], "--trainer: secondsPerToken must not be negative"),
        (["--engines=h100=1", "--trainer=secondsPerToken=1", "--lengths=mean=3"], "--lengths: mean: it has median"),
        (["--engines=h100=1", "--trainer=secondsPerToken=1", "--lengths=median=0"], "--lengths.median: must be "),
        (["--engines=h100=1", "--trainer=secondsPerToken=1", "--lengths=sigma=0.1"], "--lengths: promptSigma is"),
        (["--engines=h100=1", "--trainer=secondsPerToken=1", "--lengths=min=9,max=5"], "--lengths: min must not be"),
        (["--engines=h100=1", "--trainer=secondsPerToken=1", "--lengths=min=1.5"], "--lengths.min: a whole number"),
        (["--engines=h100=1", "--trainer=secondsPerToken=nan"], "--trainer: secondsPerToken"),
        (["--engines=h100=1", "--trainer=secondsPerToken=1", "--price=h100=-1"], "--price: h100"),
        (["--picture=a.bmp"], "--picture: a.bmp does not end with .png, .svg, .pdf"),
        (["--picture=nowhere/a.png"], "--picture: there is no folder nowhere"),
        (["--engines=h100=1", "--skip=4"], "--skip: leaves no step of 4"),
        (["--sweep=maxStaleness=1"], "--sweep: 'maxStaleness=1' is not spec.path=value"),
        (["--engines=h100=1", "--sweep=spec.pipeline.maxStalenes=1"], "maxStalenes"),
    ],
)  # fmt: skip
def test_bad_words_are_refused_by_name(job: Path, words: list[str], said: str) -> None:
    result = simulate(job, *words)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_nothing_is_simulated_before_all_is_valid(job: Path) -> None:
    words = (LENGTHS, "--trainer=secondsPerToken=1", "--engines=h100=1", "--engines=h100=0")
    result = simulate(job, "--json", *words)
    assert result.exit_code == 2
    assert "tokens_per_second" not in result.output


def test_the_table_compares_with_its_first_line(job: Path) -> None:
    words = (LENGTHS, "--trainer=secondsPerToken=1e-5", "--engines=l40s=1", "--engines=h100=1")
    result = simulate(job, *words)
    assert result.exit_code == 0, result.output
    head, _, first, second = result.output.splitlines()
    assert "tokens/s" in head
    assert "cost" not in head
    assert "1.00x" in first
    assert "1 h100" in second


def test_a_picture_has_a_line_for_each_fleet_over_what_is_swept(job: Path, tmp_path: Path) -> None:
    picture = tmp_path / "sweep.svg"
    words = ["--trainer=secondsPerToken=1e-5", "--price=h100=2", f"--picture={picture}", "--engines=h100=1"]
    result = simulate(job, LENGTHS, *words, "--engines=h100=2", "--sweep=spec.data.promptsPerStep=4,8")
    assert result.exit_code == 0, result.output
    drawn = picture.read_text()
    for text in ("spec.data.promptsPerStep", "1 h100", "2 h100", "tokens/s", "mean staleness", "cost of"):
        assert f"<!-- {text}" in drawn


def test_without_a_sweep_the_picture_compares_fleets(job: Path, tmp_path: Path) -> None:
    picture = tmp_path / "fleets.png"
    words = ["--trainer=secondsPerToken=1e-5", f"--picture={picture}", "--engines=h100=1", "--engines=l40s=1"]
    result = simulate(job, LENGTHS, *words)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly  # tests/simulator/test_dispatch.py has the ratio
def test_good_predictions_are_faster_than_none_on_unequal_engines(job: Path) -> None:
    words = [
        "--json",
        "--trainer=secondsPerToken=1e-6",
        "--engines=h100=2,l40s=4",
        "--steps=30",
        "--slots=16",
    ]
    changes = {
        "pipeline": "{mode: Synchronous}",
        "data.promptsPerStep": "12",
        "data.groupSize": "8",
        "rollout.sampling.maxTokens": "16384",
    }
    words += [f"--set=spec.{field}={value}" for field, value in changes.items()]
    none, good = (lines(simulate(job, *words, f"--length-correlation={known}"))[0] for known in (0, 0.7))
    assert good["tokens_per_second"] > 1.05 * none["tokens_per_second"]
