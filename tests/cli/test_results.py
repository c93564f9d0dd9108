"""What a run shows and leaves for people, from the lines of its METRICS stream."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from example_job import write_job
from matplotlib.figure import Figure
from rich.console import Console

from rljob_cli.manifest.load import load_job
from rljob_cli.run.live_view import LiveView, open_view
from rljob_cli.run.memory_use import PeakMemory
from rljob_cli.run.metrics_file import MetricsFile
from rljob_cli.run.plain_view import PlainView, TimeLeft
from rljob_cli.run.result_files import draw, plot, summarize, write_engines, write_summary
from rljob_cli.run.run_progress import Rate, RunProgress
from rljob_cli.run.signal_watch import unscored
from rljob_cli.run.view import EventLog
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.failures import Failure, Reason
from rljob_core.held_out import HeldOutScore
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
        commit(1, epoch=2, tokens=110),
        commit(2, epoch=2, tokens=140),
        evaluation(2, 0.9, 0.95),
        replace(commit(2, epoch=2, tokens=150), reward_mean=None, finished="Succeeded"),
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
        "heldout_reward_ci95_before": None,
        "heldout_reward_ci95_after": None,
        "heldout_greedy_ci95_before": None,
        "heldout_greedy_ci95_after": None,
        "heldout_greedy_before": 0.8,
        "heldout_greedy_after": 0.95,
        "heldout_mixed_before": 0,
        "heldout_mixed_after": 0,
        "heldout_failed_before": 0,
        "heldout_failed_after": 0,
        "optimizer_resets": [],
        "staleness_max": 2,
        "staleness_mean": 0.75,
        "trajectories": {"planned": 12, "generated": 10, "consumed": 8, "aborted": {"RewardFailed": 2}},
        "attempts_failed": {},
        "trainer_attempts": 0,
        "coordinator_epochs": 2,
        "peak_memory_bytes": 1 << 30,
        "exit": "Succeeded",
        "reason": "",
        "message": "",
        "warnings": [],
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


def test_what_is_said_of_sites_is_that_of_the_newest_line() -> None:
    """The reconcile makes a condition of it, as on a cluster."""
    progress = RunProgress()
    for line, expected in (
        (replace(evaluation(0, 0.3, 0.8), sites_held=("east",)), ((), ("east",))),
        (replace(commit(1), sites_away=("east",)), (("east",), ())),
        (commit(2), ((), ())),
    ):
        progress.add(line)
        metrics = progress.job_metrics
        assert metrics is not None
        assert (metrics.sites_away, metrics.sites_held) == expected


def test_the_last_summary_counts_by_the_ledger(job: RLJob) -> None:
    state = JobState()
    state.apply(EpochClaimed(5_000_003, "c", "uid"))
    state.apply(Evaluated(0, 0.3, 0.8, 4, 8))
    state.apply(Evaluated(2, 0.5, 0.75, 4, 8, newest=3, mixed=2))
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


def test_an_evaluation_that_fails_is_said_everywhere(job: RLJob, tmp_path: Path) -> None:
    failed = StepMetrics(
        2, 2, 0.0, heldout_failed=3, heldout_error="prompt 1: RewardRaised: no gold", epoch=1
    )
    progress, console = RunProgress(), Console(file=StringIO(), width=200)
    progress.add(failed)
    with PlainView(console, job, EventLog(tmp_path / "events.log")) as view:
        view.line(failed, progress)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "held-out at version 2: – sampled, – greedy" in said
    assert (
        "3 held-out answers have no score and are more than a tenth: the evaluation fails; prompt 1: Rew"
        in said
    )
    summary = summarize(job, progress, wall_seconds=1.0, peak_bytes=0, outcome="Running")
    assert (summary["heldout_reward_after"], summary["heldout_failed_after"]) == (None, 3)
    (warning,) = unscored(progress.evaluations)
    assert str(warning).startswith("EvaluationFailed: at version 2, 3 held-out answers have no score")
    draw(job, progress)


def test_no_step_is_past_the_last_one(job: RLJob, tmp_path: Path) -> None:
    """`spec.steps` was lowered to 2 when steps up to 8 had begun."""
    lowered = job.model_copy(update={"spec": job.spec.model_copy(update={"steps": 2})})
    progress = RunProgress()
    progress.add(replace(commit(6), last_version=8))
    console = Console(file=StringIO(), width=200)
    with PlainView(console, lowered, EventLog(tmp_path / "events.log")) as view:
        view.line(progress.lines[-1], progress)
    assert "  step 6/8  " in console.file.getvalue()  # type: ignore[attr-defined]
    summary = summarize(lowered, progress, wall_seconds=1.0, peak_bytes=0, outcome="Running")
    assert (summary["steps"], summary["steps_planned"]) == (6, 8)


def test_what_is_said_of_a_site(job: RLJob, tmp_path: Path) -> None:
    progress = RunProgress(["west"])
    progress.sites["west"].bytes_up = 1_500_000
    far = EngineSignal("far-0.1", "far", 1, 1, 0, 8, 0, 0, 50, site="west", outbox_bytes=2_000_000)
    for now, engine, line in ((0.0, far, commit(1)), (1.0, replace(far, tokens=90), commit(2))):
        progress.heard("engines.far-0.1", engine)
        progress.add(replace(line, trained_at={"west": 3}))
        progress.mark(now)
    console = Console(file=StringIO(), width=200)
    with LiveView(console, job, EventLog(tmp_path / "events.log")) as view:
        view.refresh(progress)
    said = "site west: connected, 2.0 MB wait there, 1.5 MB up, 0.0 MB down, 6 trained"
    assert said in console.file.getvalue()  # type: ignore[attr-defined]
    summary = summarize(job, progress, wall_seconds=1.0, peak_bytes=0, outcome="Running")["sites"]["west"]
    assert (summary["connected"], summary["tokens_generated"], summary["trajectories_trained"]) == (
        True,
        90,
        6,
    )

    progress.mark(31.0)
    with PlainView(console, job, EventLog(tmp_path / "events.log")) as view:
        view.line(progress.lines[-1], progress)
    assert "engines 0  away: west  " in console.file.getvalue()  # type: ignore[attr-defined]
    assert not summarize(job, progress, wall_seconds=1.0, peak_bytes=0, outcome="Running")["sites"]["west"][
        "connected"
    ]
    progress.add(StepMetrics(1, 1, 0.0, gone_back=True, epoch=3))
    assert progress.sites["west"].trained == 3


def test_an_evaluation_says_which_answers_are_not_of_its_version_alone(job: RLJob, tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    with PlainView(console, job, EventLog(tmp_path / "events.log")) as view:
        view.line(replace(evaluation(12, 0.5, 0.75), heldout_newest=13, heldout_mixed=26), RunProgress())
        view.line(
            replace(
                evaluation(13, 0.5, 0.75),
                heldout_set="aime",
                heldout_sampled_ci95=0.04,
                heldout_pass_at={1: 0.5, 4: 0.9},
                heldout_sets={"gsm8k": HeldOutScore(0.25, None, 8, 16, 1, "prompt 1: no gold")},
            ),
            RunProgress(),
        )
    first, second, *third = without_times(console.file.getvalue())  # type: ignore[attr-defined]
    assert first == (
        "held-out at version 12: 0.500 sampled, 0.750 greedy (26 answers with tokens of later versions, up to 13)"
    )
    assert second == (
        "held-out aime at version 13: 0.500 ± 0.040 sampled, 0.750 greedy, pass@1 0.500, pass@4 0.900"
    )
    assert third == [
        "held-out gsm8k at version 13: 0.250 sampled, – greedy",
        "warning: held-out at version 13: gsm8k: 1 held-out answers have no score and count as 0; prompt 1: no gold",
    ]


def test_summary_before_anything_happened(job: RLJob) -> None:
    summary = summarize(
        job,
        RunProgress(),
        wall_seconds=0.0,
        peak_bytes=0,
        outcome="Failed",
        failure=Failure(Reason.STORAGE_REFUSED, "no disk"),
    )
    assert summary["steps"] == 0
    assert summary["heldout_reward_before"] is None
    assert summary["staleness_max"] is None
    assert (summary["exit"], summary["reason"], summary["message"]) == ("Failed", "StorageRefused", "no disk")


def test_metrics_file_starts_over_from_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("what a run that was cut short had written\n")
    file = MetricsFile(path)
    file.start([evaluation(0, 0.3, 0.8), commit(1)])
    file.append(commit(2))
    read = [STEP_METRICS.validate_json(line) for line in path.read_text().splitlines()]
    assert read == [evaluation(0, 0.3, 0.8), commit(1), commit(2)]
    file.close(pytest.fail)
    assert list(tmp_path.iterdir()) == [path]


def test_an_evaluation_s_row_stands_at_its_version_and_the_end_has_none(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    late = replace(evaluation(1, 0.5, 0.5), seconds=3.5, tokens_generated=70)
    end = replace(commit(3), reward_mean=None, finished="Succeeded")
    file.start([])
    for line in (commit(1, tokens=20), commit(2, tokens=40), commit(3, tokens=60), late, end):
        file.append(line)
    file.close(pytest.fail)
    rows = rows_of(tmp_path)
    assert [(row["version"], row["heldout_sampled"]) for row in rows] == [
        (1, None),
        (1, 0.5),
        (2, None),
        (3, None),
    ]
    assert (rows[1]["seconds"], rows[1]["tokens_generated"]) == (1.0, 20)
    assert not any(row["finished"] for row in rows)


def test_a_disk_that_refuses_the_metrics_file_does_not_change_the_end_of_a_run(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.start([])
    for line in (commit(1), commit(2), evaluation(1, 0.5, 0.5)):
        file.append(line)
    (tmp_path / ".metrics.jsonl.new").mkdir()  # in the way of the file's replacement
    notes: list[str] = []
    file.close(notes.append)
    (note,) = notes
    assert note.startswith(f"{tmp_path}/metrics.jsonl was not put into order (")
    assert len(rows_of(tmp_path)) == 3


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


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


def without_times(text: str) -> list[str]:
    """The lines of a plain view, each of which begins with the time of day."""
    lines = text.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    return [line[10:] for line in lines]


def test_plain_lines_do_not_flood(job: RLJob, tmp_path: Path) -> None:
    out = StringIO()
    progress = RunProgress()
    with open_view(Console(file=out), job, EventLog(tmp_path / "events.log")) as view:
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
    lines = without_times(out.getvalue())
    # The first step, whatever happened beside it, and the last step; not the hundreds between.
    assert lines[0].startswith("step 1/4  reward 0.100  staleness 0.50 (max 1)")
    assert "BackOff sums-rollout-cpu-0: ended with code 137; starts again in 1 s" in lines
    assert "held-out at version 199: 0.500 sampled, 0.750 greedy" in lines
    assert lines[-1].startswith("step 200/200  ")
    assert re.search(r"  elapsed 0:\d\d  left 0:\d\d$", lines[-1])
    assert len(lines) < 10
    (kept,) = (tmp_path / "events.log").read_text().splitlines()
    assert re.fullmatch(r"[-0-9]{10}T[:0-9]{8}Z BackOff sums-rollout-cpu-0: ended with code 137; .*", kept)


def test_time_left_is_that_of_the_steps_of_this_run() -> None:
    times = TimeLeft(100.0)
    times.committed(7, 130.0)
    assert times.text(20, 131.0) == "elapsed 0:31  left –"
    times.committed(9, 150.0)
    assert times.text(20, 150.0) == "elapsed 0:50  left 1:50"
    assert times.text(1000, 4100.0) == "elapsed 1:06:40  left 2:45:10"
    assert times.text(8, 151.0) == "elapsed 0:51  left 0:00"


def panel_of(job: RLJob, folder: Path, *, width: int, height: int, events: Sequence[Event]) -> list[str]:
    """The lines of the last panel that a terminal of this size gets."""
    out = StringIO()
    progress = progress_of_a_run()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system=None)
    with open_view(console, job, EventLog(folder / "events.log")) as view:
        view.line(commit(2), progress)
        for event in events:
            view.event(event)
    return out.getvalue().rpartition("╭")[2].splitlines()


def test_a_narrow_terminal_shows_all_of_what_it_shows(job: RLJob, tmp_path: Path) -> None:
    long = Event("Warning", "Unhealthy", "a message of many words, " * 6 + "and its end", "sums-reward-0")
    lines = panel_of(job, tmp_path, width=80, height=24, events=[long])
    text = " ".join(line.strip("│ ") for line in lines)
    assert "…" not in text
    assert "and its end" in text
    for figure in ("0.900", "0.950", "0.75 (max 2)", "tokens/s", "generating 3"):
        assert figure in text
    crowded = panel_of(job, tmp_path, width=80, height=24, events=[long] * 6)
    assert len(crowded) < 24
    assert "and its end" in " ".join(crowded)


def test_figures_of_processes_that_have_ended_are_said_to_be_old(job: RLJob, tmp_path: Path) -> None:
    died = Event("Warning", "BackOff", "ended with code 137", "sums-coordinator-0")
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=110, height=40, color_system=None)
    with open_view(console, job, EventLog(tmp_path / "events.log")) as view:
        view.line(commit(1), progress_of_a_run())
        view.event(died)
    assert re.search(r"figures as of before \d\d:\d\d:\d\d: BackOff", out.getvalue().rpartition("╭")[2])
    out.truncate(0)
    with open_view(console, job, EventLog(tmp_path / "events.log")) as view:
        view.event(died)
        view.line(commit(2), progress_of_a_run())
    assert "figures" not in out.getvalue().rpartition("╭")[2]
    out.truncate(0)
    with open_view(console, job, EventLog(tmp_path / "events.log")) as view:
        view.refresh(progress_of_a_run())
    assert "figures of an earlier run" in out.getvalue().rpartition("╭")[2]


def test_live_view_on_a_terminal(job: RLJob, tmp_path: Path) -> None:
    out = StringIO()
    progress = progress_of_a_run()
    signal = EngineSignal("cpu-0", "cpu", 1, 2, held=6, slots=8, running=5, waiting=1, tokens=10)
    progress.heard("engine.cpu-0", signal)
    mixed = replace(evaluation(3, 0.95, 0.75), heldout_mixed=26, heldout_newest=4)
    with open_view(
        Console(file=out, force_terminal=True, width=110, height=40), job, EventLog(tmp_path / "events.log")
    ) as view:
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
    with open_view(
        Console(file=out, force_terminal=True, width=110, height=40), job, EventLog(tmp_path / "events.log")
    ) as view:
        view.line(mixed, progress)
    assert "0.300 → 0.950 (26 mixed)" in out.getvalue()
    progress.heard("engine.cpu-0", None)
    assert progress.engines == {}


def test_a_narrow_live_view_is_no_higher_than_its_terminal(job: RLJob, tmp_path: Path) -> None:
    progress = progress_of_a_run()
    for site in ("west", "east", "north"):
        progress.sites.update(RunProgress([site]).sites)
        progress.sites[site].beat_seconds = 45.0
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=30, height=32)
    with LiveView(console, job, EventLog(tmp_path / "events.log")) as view:
        view.line(commit(2), progress)
        for number in range(6):
            view.note(f"message {number}")
    frame = out.getvalue().rpartition("╭")[2]
    assert frame.count("\n") <= console.height
    assert "message 5" in frame


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
