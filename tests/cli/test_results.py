"""What a run shows and leaves for people, from the lines of its METRICS stream."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from example_job import write_job
from matplotlib.figure import Figure
from rich.console import Console

from rljob_cli.manifest.load import load_job
from rljob_cli.run.memory_use import PeakMemory
from rljob_cli.run.result_files import MetricsFile, draw, plot, summarize, write_engines, write_summary
from rljob_cli.run.run_progress import Rate, RunProgress
from rljob_cli.run.view import LiveView, PlainView, open_view
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.job_state import JobState
from rljob_core.messages import STEP_METRICS, EngineProfile, EngineSignal, StepMetrics, StepStats
from rljob_core.records import EpochClaimed, Evaluated
from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Event


@pytest.fixture
def job(tmp_path: Path) -> RLJob:
    return load_job(write_job(tmp_path), ["spec.pipeline.maxStaleness=2"])


def commit(version: int, *, epoch: int = 1, tokens: int = 0) -> StepMetrics:
    return StepMetrics(
        step=version,
        version=version,
        seconds=float(version),
        reward_mean=version / 10,
        tokens_generated=tokens,
        trajectories={"planned": 4 * version + 4, "generated": 4 * version + 2, "consumed": 4 * version},
        aborted={"RewardFailed": version},
        queues={"generating": 3},
        epoch=epoch,
        stats=StepStats(staleness_mean=version / 2, staleness_max=version),
    )


def evaluation(version: int, sampled: float, greedy: float) -> StepMetrics:
    return StepMetrics(version, version, 0.0, heldout_sampled=sampled, heldout_greedy=greedy, epoch=1)


def progress_of_a_run() -> RunProgress:
    """Two steps, a coordinator that is replaced after the first and repeats it, and evaluations of versions 0 and 2."""
    progress = RunProgress()
    lines = [
        evaluation(0, 0.3, 0.8),
        commit(1, tokens=100),
        commit(1, epoch=2, tokens=10),
        commit(2, epoch=2, tokens=40),
        evaluation(2, 0.9, 0.95),
        replace(commit(2, epoch=2, tokens=50), reward_mean=None, finished="Succeeded"),
    ]
    taken = [progress.add(line) for line in lines]
    assert taken == [True, True, False, True, True, True]
    return progress


def test_summary(job: RLJob, tmp_path: Path) -> None:
    summary = summarize(job, progress_of_a_run(), wall_seconds=10.0, peak_bytes=1 << 30, outcome="Succeeded")
    assert summary == {
        "job": "sums",
        "mode": "BoundedAsync",
        "max_staleness": 2,
        "steps": 2,
        "steps_planned": 4,
        "wall_seconds": 10.0,
        "tokens_generated": 150,
        "tokens_per_second": 15.0,
        "heldout_reward_before": 0.3,
        "heldout_reward_after": 0.9,
        "heldout_greedy_before": 0.8,
        "heldout_greedy_after": 0.95,
        "heldout_mixed_before": 0,
        "heldout_mixed_after": 0,
        "optimizer_resets": [],
        "staleness_max": 2,
        "staleness_mean": 0.75,
        "trajectories": {"planned": 12, "generated": 10, "consumed": 8, "aborted": {"RewardFailed": 2}},
        "attempts_failed": {},
        "trainer_attempts": 0,
        "coordinator_epochs": 2,
        "peak_memory_bytes": 1 << 30,
        "exit": "Succeeded",
        "message": "",
    }
    folder = RunFolder(tmp_path)
    assert folder.earlier_summary() == {}
    write_summary(folder, summary)
    assert folder.earlier_summary() == summary


def test_revoked_versions_are_forgotten_and_announced_again() -> None:
    progress = progress_of_a_run()
    back = replace(commit(1, epoch=3), reward_mean=None, gone_back=True)
    assert not progress.add(back)
    assert progress.end is None
    assert [(line.version, line.epoch) for line in progress.lines] == [(0, 1), (1, 1)]
    assert progress.step == 1
    assert progress.add(commit(2, epoch=4))
    assert progress.step == 2


def test_the_last_summary_counts_by_the_ledger(job: RLJob) -> None:
    state = JobState()
    state.apply(EpochClaimed(5_000_003, "c", "uid"))
    state.apply(Evaluated(0, 0.3, 0.8, 4))
    state.apply(Evaluated(2, 0.5, 0.75, 4, newest=3, mixed=2))
    state.counts.update(planned=16, generated=12, consumed=8)
    state.aborted["PayloadLost"] = 4
    summary = summarize(
        job, progress_of_a_run(), wall_seconds=1.0, peak_bytes=0, outcome="Interrupted", ledger=state
    )
    assert summary["trajectories"] == {
        "planned": 16,
        "generated": 12,
        "consumed": 8,
        "aborted": {"PayloadLost": 4},
    }
    assert (summary["steps"], summary["coordinator_epochs"]) == (0, 5)
    assert (summary["heldout_reward_before"], summary["heldout_reward_after"]) == (0.3, 0.5)
    assert (summary["heldout_mixed_before"], summary["heldout_mixed_after"]) == (0, 2)


def test_no_step_is_past_the_last_one(job: RLJob) -> None:
    """`spec.steps` was lowered to 2 when steps up to 8 had begun."""
    lowered = job.model_copy(update={"spec": job.spec.model_copy(update={"steps": 2})})
    progress = RunProgress()
    progress.add(replace(commit(6), last_version=8))
    console = Console(file=StringIO(), width=200)
    with PlainView(console, lowered) as view:
        view.line(progress.lines[-1], progress)
    assert console.file.getvalue().startswith("step 6/8  ")  # type: ignore[attr-defined]
    summary = summarize(lowered, progress, wall_seconds=1.0, peak_bytes=0, outcome="Running")
    assert (summary["steps"], summary["steps_planned"]) == (6, 8)


def test_an_evaluation_says_which_answers_are_not_of_its_version_alone(job: RLJob) -> None:
    console = Console(file=StringIO(), width=200)
    with PlainView(console, job) as view:
        view.line(replace(evaluation(12, 0.5, 0.75), heldout_newest=13, heldout_mixed=26), RunProgress())
        view.line(evaluation(13, 0.5, 0.75), RunProgress())
    first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first == (
        "held-out at version 12: 0.500 sampled, 0.750 greedy (26 answers with tokens of later versions, up to 13)"
    )
    assert second == "held-out at version 13: 0.500 sampled, 0.750 greedy"


def test_summary_before_anything_happened(job: RLJob) -> None:
    summary = summarize(
        job, RunProgress(), wall_seconds=0.0, peak_bytes=0, outcome="Failed", message="no disk"
    )
    assert summary["steps"] == 0
    assert summary["heldout_reward_before"] is None
    assert summary["staleness_max"] is None
    assert (summary["exit"], summary["message"]) == ("Failed", "no disk")


def test_metrics_file_starts_over_from_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("what a run that was cut short had written\n")
    file = MetricsFile(path)
    file.start([evaluation(0, 0.3, 0.8), commit(1)])
    file.append(commit(2))
    read = [STEP_METRICS.validate_json(line) for line in path.read_text().splitlines()]
    assert read == [evaluation(0, 0.3, 0.8), commit(1), commit(2)]
    file.close()
    assert list(tmp_path.iterdir()) == [path]


def test_plot_is_a_picture(job: RLJob, tmp_path: Path) -> None:
    plot(tmp_path / "reward.png", job, RunProgress())
    assert not (tmp_path / "reward.png").exists()
    plot(tmp_path / "reward.png", job, progress_of_a_run())
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_what_engines_measured_outlives_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    progress = RunProgress()
    young = EngineSignal("e-0.1", "cpu", 1, 0, 0, 4, 0, 0, 0)
    measured = replace(young, profile=EngineProfile(0.01, 0.0, 0.0, steps=32))
    progress.heard("engine.e-0.1", young)
    folder.engines.write_text("of the run before")
    write_engines(folder, progress)
    assert folder.engines.read_text() == "of the run before"
    progress.heard("engine.e-0.1", measured)
    progress.heard("engine.e-1.1", replace(measured, engine="e-1.1"))
    progress.heard("engine.e-0.1", None)
    progress.heard("engine.e-0.2", replace(measured, engine="e-0.2", tokens=9))
    progress.heard("engine.e-0.2", replace(young, engine="e-0.2"))
    write_engines(folder, progress)
    found = json.loads(folder.engines.read_text())
    assert [(signal["engine"], signal["profile"]["steps"]) for signal in found] == [
        ("e-0.2", 32),
        ("e-1.1", 32),
    ]


def test_lost_checkpoints_are_listed_once_each(job: RLJob) -> None:
    progress = RunProgress()
    for version, reset in enumerate(
        ["", "step-2 is gone", "step-2 is gone", "", "step-4 is damaged"], start=1
    ):
        progress.add(replace(commit(version), optimizer_reset=reset))
    summary = summarize(job, progress, wall_seconds=1.0, peak_bytes=0, outcome="Running")
    assert summary["optimizer_resets"] == ["step-2 is gone", "step-4 is damaged"]


def test_the_picture_marks_evaluations_that_mix_versions(job: RLJob) -> None:
    label = "held out, some answers with tokens of later versions"
    assert label not in labels(draw(job, progress_of_a_run()))
    progress = progress_of_a_run()
    progress.add(replace(evaluation(1, 0.5, 0.75), heldout_mixed=26, heldout_newest=3))
    assert label in labels(draw(job, progress))


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]


def test_rate_survives_a_process_that_starts_again() -> None:
    rate = Rate()
    rate.count("a", 100)
    rate.mark(0.0)
    rate.count("a", 300)
    rate.count("b", 50)
    rate.forget("b")
    rate.count("b", 30)
    rate.count("a", 20)  # restarted under its old name
    rate.mark(10.0)
    assert rate.total == 400
    assert rate.per_second == 30.0


def test_plain_lines_do_not_flood(job: RLJob) -> None:
    out = StringIO()
    progress = RunProgress()
    with open_view(Console(file=out), job) as view:
        assert isinstance(view, PlainView)
        for version in range(1, 200):
            progress.add(commit(version))
            view.line(commit(version), progress)
        view.event(
            Event("Warning", "BackOff", "ended with code 137; starts again in 1 s", "sums-rollout-cpu-0")
        )
        view.line(evaluation(199, 0.5, 0.75), progress)
        progress.add(commit(200))
        view.line(commit(200), progress)
    lines = out.getvalue().splitlines()
    # The first step, whatever happened beside it, and the last step; not the hundreds between.
    assert lines[0].startswith("step 1/4  reward 0.100  staleness 0.50 (max 1)")
    assert "BackOff sums-rollout-cpu-0: ended with code 137; starts again in 1 s" in lines
    assert "held-out at version 199: 0.500 sampled, 0.750 greedy" in lines
    assert lines[-1].startswith("step 200/200  ")
    assert len(lines) < 10


def test_live_view_on_a_terminal(job: RLJob) -> None:
    out = StringIO()
    progress = progress_of_a_run()
    signal = EngineSignal("cpu-0", "cpu", 1, 2, held=6, slots=8, running=5, waiting=1, tokens=10)
    progress.heard("engine.cpu-0", signal)
    mixed = replace(evaluation(3, 0.95, 0.75), heldout_mixed=26, heldout_newest=4)
    with open_view(Console(file=out, force_terminal=True, width=110, height=40), job) as view:
        assert isinstance(view, LiveView)
        view.line(commit(2), progress)
        view.line(mixed, progress)
        view.event(Event("Warning", "BackOff", "ended with code 137", "sums-reward-0"))
    text = out.getvalue()
    for part in (
        "sums · BoundedAsync · maxStaleness 2",
        "0.300 → 0.900",
        "0.800 → 0.950",
        "0.75 (max 2)",
        "1 (5 running, 1 waiting)",
        "BackOff sums-reward-0: ended with code 137",
        "2/4",
        "held-out at version 3: (26 answers with tokens of later versions, up to 4)",
    ):
        assert part in text
    assert "mixed" not in text  # of those that are shown beside each other, none is
    progress.add(mixed)
    with open_view(Console(file=out, force_terminal=True, width=110, height=40), job) as view:
        view.line(mixed, progress)
    assert "0.300 → 0.950 (26 mixed)" in out.getvalue()
    progress.heard("engine.cpu-0", None)
    assert progress.engines == {}


async def test_the_peak_of_memory_is_that_of_all_starts_of_a_run() -> None:
    first = PeakMemory(0)
    await first.measure()
    assert first.bytes > 1 << 20
    resumed = PeakMemory(1 << 60)
    await resumed.measure()
    assert resumed.bytes == 1 << 60


def test_run_folder_survives_a_torn_write(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text('{"steps": 3')
    assert folder.earlier_summary() == {}
    folder.summary.write_text(json.dumps([1]))
    assert folder.earlier_summary() == {}
