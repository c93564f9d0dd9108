"""`rljob simulate --from`: a run that took exactly what its profiles say is simulated as it was, and changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenarios import SHORT, engine, job_config, scenario
from simulated_run import NotingJob, write_simulated_run
from typer.testing import CliRunner, Result

from rljob_cli.commands import app
from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.simulate.fleet import with_unmeasured
from rljob_cli.simulate.measured import MeasuredJob
from rljob_cli.simulate.recorded_run import TrainedAnswers, read_run
from rljob_core.emulation import ResponseLengths
from rljob_core.records import JobFinished, VersionsRevoked
from rljob_core.spec import EngineSpec
from rljob_sim import Scenario, SimulationReport, TrainerProfile
from rljob_sim import simulate as simulate_job

CONSTANT = ResponseLengths(median=100, sigma=0.0, prompt_sigma=0.0, min=100, max=100)
JOB = job_config(mode="BoundedAsync", maxStaleness=1, steps=12)
EXACT = scenario(JOB, engine(2), lengths=CONSTANT, trainer=TrainerProfile(1e-4, publish_seconds=0.05))


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SimulationReport]:
    """A run all of whose answers are equally long."""
    return _written(tmp_path_factory.mktemp("exact") / "run", EXACT)


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SimulationReport]:
    """A run of different answers, whose trainer takes a fixed time besides."""
    return _written(tmp_path_factory.mktemp("varied") / "run", scenario(JOB, engine(2)))


def _written(path: Path, of: Scenario) -> tuple[Path, SimulationReport]:
    return path, write_simulated_run(RunFolder(path), of)


def simulate(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, words)])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_run_is_simulated_as_it_was(exact: tuple[Path, SimulationReport]) -> None:
    path, report = exact
    measured, simulated = lines(simulate("--from", path, "--json"))
    assert measured["engines"] == "the run itself"
    assert measured["steps"] == 12
    assert measured["seconds_per_step"] == pytest.approx(report.seconds_per_step(skip=3))
    assert measured["tokens_per_second"] == pytest.approx(report.tokens_per_second(skip=3))
    assert measured["staleness_mean"] == pytest.approx(report.staleness(skip=3))
    assert measured["staleness_max"] == report.max_staleness
    assert simulated["engines"] == "2 a"
    for name in ("seconds_per_step", "tokens_per_second", "staleness_mean", "staleness_max"):
        assert simulated[name] == pytest.approx(measured[name], rel=1e-6)


def test_what_a_run_measured_is_what_it_was_made_of(varied: tuple[Path, SimulationReport]) -> None:
    path, report = varied
    found = MeasuredJob.of(read_run(path), steps=12, skip=0)
    trainer = scenario().trainer
    assert found.trainer.seconds_per_token == pytest.approx(trainer.seconds_per_token)
    assert found.trainer.step_seconds == pytest.approx(trainer.step_seconds)
    assert found.trainer.publish_seconds == pytest.approx(trainer.publish_seconds)
    assert found.prompt_tokens == 20
    assert found.kinds.keys() == {"a"}
    kind = found.kinds["a"]
    assert (kind.count, kind.slots, kind.kv_tokens) == (2, 16, None)
    assert kind.profile == replace(engine().profile, steps=200)
    assert sum(step.tokens for step in found.steps) == sum(step.tokens for step in report.steps)
    assert SHORT.min <= found.lengths.all[0] <= found.lengths.median <= found.lengths.max <= SHORT.max
    assert len(found.lengths.groups) == 12 * 8
    assert all(len(group) == 4 for group in found.lengths.groups)


def test_different_answers_are_repeated_group_by_group(varied: tuple[Path, SimulationReport]) -> None:
    path, report = varied
    found = simulate_job(
        replace(scenario(JOB, engine(2)), lengths=MeasuredJob.of(read_run(path), steps=12).lengths)
    )
    assert found == report
    (measured, simulated) = lines(simulate("--from", path, "--json"))
    assert simulated["seconds_per_step"] == pytest.approx(measured["seconds_per_step"], rel=1e-3)


def test_of_a_long_run_the_newest_steps_count(varied: tuple[Path, SimulationReport]) -> None:
    path, report = varied
    found = MeasuredJob.of(read_run(path), steps=5, skip=2)
    assert [step.version for step in found.steps] == [10, 11, 12]
    assert found.seconds_per_step == pytest.approx((report.steps[11].time - report.steps[8].time) / 3)
    assert len(found.lengths.groups) == 5 * 8


def test_the_run_s_job_is_changed_and_compared_with_the_run(exact: tuple[Path, SimulationReport]) -> None:
    path, _ = exact
    words = ("--engines=a=4", "--sweep=spec.pipeline.maxStaleness=1,2", "--json")
    measured, as_it_was, *others = lines(simulate("--from", path, *words))
    assert measured["spec.pipeline.maxStaleness"] == as_it_was["spec.pipeline.maxStaleness"] == "–"
    assert as_it_was["engines"] == "2 a"
    assert [(row["engines"], row["spec.pipeline.maxStaleness"]) for row in others] == [
        ("4 a", "1"),
        ("4 a", "2"),
    ]
    assert others[0]["seconds_per_step"] < as_it_was["seconds_per_step"]


def test_the_fleet_is_that_of_the_changed_job(exact: tuple[Path, SimulationReport]) -> None:
    path, _ = exact
    changed = "--set=spec.rollout.pools.a.replicas=3"
    rows = lines(simulate("--from", path, "--json", changed))
    assert [row["engines"] for row in rows] == ["the run itself", "2 a", "3 a"]
    rows = lines(simulate("--from", path, "--json", "--engines=a=1,h100=1"))
    assert [row["engines"] for row in rows[2:]] == ["1 a, 1 h100"]


def test_another_manifest_is_simulated_on_the_run_s_engines(
    exact: tuple[Path, SimulationReport], tmp_path: Path
) -> None:
    path, _ = exact
    manifest = json.loads((path / "job.json").read_text())["manifest"]
    manifest["spec"]["data"]["promptsPerStep"] = 16
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(manifest))
    _, as_it_was, other = lines(simulate(file, "--from", path, "--json"))
    assert other["seconds_per_step"] > 1.5 * as_it_was["seconds_per_step"]
    manifest["spec"]["rollout"]["pools"][0]["name"] = "b"
    file.write_text(json.dumps(manifest))
    refused = simulate(file, "--from", path)
    assert refused.exit_code == 2
    assert "spec.rollout.pools.b: the run has not measured engines of this pool, but of a" in refused.output


def test_lengths_and_trainer_may_be_others(exact: tuple[Path, SimulationReport]) -> None:
    path, _ = exact
    _, as_it_was, shorter = lines(simulate("--from", path, "--json", "--lengths=median=50,min=50"))
    assert shorter["seconds_per_step"] < 0.8 * as_it_was["seconds_per_step"]
    _, as_it_was, slower = lines(simulate("--from", path, "--json", "--trainer=stepSeconds=5"))
    assert slower["seconds_per_step"] > as_it_was["seconds_per_step"] + 3


def test_people_are_told_how_far_both_agree(exact: tuple[Path, SimulationReport]) -> None:
    path, _ = exact
    result = simulate("--from", path)
    assert result.exit_code == 0, result.output
    head, _, run, simulated, _, said = result.output.splitlines()
    assert head.split()[:2] == ["engines", "s/step"]
    assert run.startswith("  the run itself")
    assert simulated.startswith("  2 a ")
    assert "1.00x" in simulated
    assert said.startswith("  A step of the run took ")
    assert said.endswith(": 1.00 of it.")


def test_its_folder_is_left_as_it_was(exact: tuple[Path, SimulationReport]) -> None:
    path, _ = exact
    before = _files(path)
    assert simulate("--from", path, "--steps=4").exit_code == 0
    assert _files(path) == before


def _files(path: Path) -> dict[str, bytes]:
    """What people and other commands read; the server writes its own."""
    return {
        file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != ".lock"
    }


def test_clocks_of_two_coordinators_are_not_compared(tmp_path: Path) -> None:
    path, report = _written(tmp_path / "run", EXACT)
    before = _lines_of(path)
    after = [
        {**line, "epoch": 2, "seconds": line["seconds"] - 5} if line["version"] > 6 else line
        for line in before
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in after) + '{"step":')
    steps = read_run(path).steps
    assert [step.version for step in steps if step.seconds is None] == [1, 7]
    assert steps[7].seconds == pytest.approx(report.steps[7].time - report.steps[6].time)


def test_of_emulated_engines_the_job_tells_what_no_run_measures() -> None:
    options = {"prefillSecondsPerToken": 1e-4, "swapSeconds": 2.0, "timeScale": 0.5, "stepSeconds": 9.0}
    rollout = JOB.spec.rollout.model_copy(update={"engine": EngineSpec(name="Emulated", options=options)})
    config = JOB.model_copy(update={"spec": JOB.spec.model_copy(update={"rollout": rollout})})
    kinds = {"a": engine(2), "gone": engine(1, name="gone")}
    assert with_unmeasured(config, kinds) == {
        "a": replace(engine(2), prefill_seconds=5e-5, swap_seconds=1.0),
        "gone": kinds["gone"],
    }
    assert with_unmeasured(JOB, kinds) == kinds


def test_versions_that_were_revoked_do_not_count() -> None:
    job = NotingJob(EXACT)
    job.run()
    state = TrainedAnswers()
    for record in (record for records in job.records for record in records):
        if not isinstance(record, JobFinished):
            state.apply(record)
    assert list(state.trained) == list(range(1, 13))
    assert {len(answers) for answers in state.trained.values()} == {32}
    state.apply(VersionsRevoked(10, "v10", "m10", None, None, 64))
    assert list(state.trained) == list(range(1, 11))


def _lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def _without_stats(path: Path) -> None:
    rows = [json.dumps({**line, "stats": None}) for line in _lines_of(path)]
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")


def _first_lines(path: Path, number: int) -> None:
    kept = (path / "metrics.jsonl").read_text().splitlines(keepends=True)[:number]
    (path / "metrics.jsonl").write_text("".join(kept))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "job.json").unlink(), "holds no run: give the output folder of an `rljob run`"),
        (lambda path: (path / "job.json").write_text("{"), "job.json is damaged"),
        (lambda path: (path / "metrics.jsonl").unlink(), "has finished no step yet"),
        (lambda path: _first_lines(path, 1), "has finished one step: time is measured from step to step"),
        (lambda path: _first_lines(path, 0), "has finished no step yet"),
        (lambda path: (path / "metrics.jsonl").write_text("{}\n"), "metrics.jsonl, line 1 cannot be read"),
        (_without_stats, "was run by a release that did not record how long training takes"),
        (lambda path: (path / "engines.json").unlink(), "does not tell how fast its engines are"),
        (lambda path: (path / "engines.json").write_text("[{"), "engines.json is damaged"),
    ],
)  # fmt: skip
def test_a_folder_that_tells_too_little_is_refused(tmp_path: Path, damage: Any, said: str) -> None:
    path = tmp_path / "run"
    folder = RunFolder(path)
    write_simulated_run(folder, replace(EXACT, config=job_config(steps=2)))
    damage(path)
    result = simulate("--from", path)
    assert result.exit_code == 2, result.output
    assert result.output.startswith("error: --from: ")
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from=nowhere"], "--from: "),
        ([], "FILE: name the YAML file of an RLJob, or a run's folder by --from"),
        (["--timeline=a.svg"], "--timeline: a.svg does not end with .json"),
        (["--timeline=nowhere/a.json"], "--timeline: there is no folder nowhere"),
    ],
)
def test_bad_words_are_refused_by_name(words: list[str], said: str) -> None:
    result = simulate(*words)
    assert result.exit_code == 2, result.output
    assert said in result.output
