"""Writes the reports in a run's output folder: `engines.json`, `summary.json` and `reward.png`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rljob_cli.run.run_progress import RunProgress, SiteProgress
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.failures import Failure
from rljob_core.held_out import HeldOutScore
from rljob_core.job_state import JobState
from rljob_core.messages import ENGINE_SIGNAL
from rljob_core.spec import RLJob
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_runtime.storage.plain_files import create_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summarize(
    job: RLJob,
    progress: RunProgress,
    *,
    wall_seconds: float,
    peak_bytes: int,
    outcome: str,
    failure: Failure | None = None,
    warnings: Sequence[str] = (),
    ledger: JobState | None = None,
    degraded: str = "",
) -> dict[str, Any]:
    """The content of `summary.json`.

    Args:
        wall_seconds: over all runs of the job.
        peak_bytes: largest sum of all processes' memory, shared pages counted once.
        outcome: `Running`, `Succeeded`, `Failed` or `Interrupted`.
        failure: why the run has failed; None if it has not.
        warnings: why the newest steps teach nothing.
        ledger: the fold of the ledger, from which the run's last summary counts: a coordinator that is stopped may have
            published less than it recorded. None while the job runs: counts are those of its newest metrics line.
        degraded: which trackers do not have all metrics, and why; empty if all do.
    """
    staleness_max, staleness_mean = progress.staleness
    tokens = progress.tokens_generated
    counts = _counts_of_lines(progress) if ledger is None else _counts_of_ledger(ledger)
    return {
        "job": job.metadata.name,
        "mode": str(job.spec.pipeline.mode),
        "max_staleness": job.spec.pipeline.bound,
        "steps_planned": max(progress.planned(job.spec.steps), counts["steps"]),
        "wall_seconds": round(wall_seconds, 2),
        "tokens_generated": tokens,
        "tokens_per_second": round(tokens / wall_seconds, 1) if wall_seconds > 0 else 0.0,
        "staleness_max": staleness_max,
        "staleness_mean": staleness_mean,
        "optimizer_resets": progress.optimizer_resets,
        "peak_memory_bytes": peak_bytes,
        "exit": outcome,
        "reason": failure.reason if failure is not None else "",
        "message": failure.detail if failure is not None else "",
        "warnings": list(warnings),
        **({"trackers_degraded": degraded} if degraded else {}),
        **({"sites": {name: _site(site) for name, site in progress.sites.items()}} if progress.sites else {}),
        **counts,
    }


def _site(site: SiteProgress) -> dict[str, Any]:
    """What `summary.json` says of a site; its tokens are those of this run, everything else is of the whole job."""
    return {
        "connected": site.connected,
        "last_heard_seconds": None if site.beat_seconds is None else round(site.beat_seconds, 1),
        "outbox_bytes": site.outbox_bytes,
        "bytes_up": site.bytes_up,
        "bytes_down": site.bytes_down,
        "tokens_generated": int(site.tokens.total),
        "trajectories_trained": site.trained,
    }


def _counts_of_lines(progress: RunProgress) -> dict[str, Any]:
    evaluations, latest = progress.evaluations, progress.latest
    return {
        "steps": progress.step,
        **_evaluated(
            [
                (next(iter(e.held_out.values())), e.heldout_sets, e.heldout_mixed)
                for e in (*evaluations[:1], *evaluations[-1:])
            ]
        ),
        "trajectories": _trajectories(latest.trajectories, latest.aborted)
        if latest
        else _trajectories({}, {}),
        "attempts_failed": dict(latest.attempts_failed) if latest else {},
        "trainer_attempts": latest.trainer_attempt if latest else 0,
        "coordinator_epochs": latest.epoch if latest else 0,
    }


def _counts_of_ledger(state: JobState) -> dict[str, Any]:
    evaluated = [state.evaluated[choose(state.evaluated)] for choose in (min, max) if state.evaluated]
    return {
        "steps": state.version,
        **_evaluated([(e.scores[0], e.sets, e.mixed) for e in evaluated]),
        "trajectories": _trajectories(state.counts, state.aborted),
        "attempts_failed": dict(state.attempts_failed),
        "trainer_attempts": state.trainer.attempt if state.trainer else 0,
        "coordinator_epochs": state.writer.count,
    }


def _trajectories(counts: Mapping[str, int], aborted: Mapping[str, int]) -> dict[str, Any]:
    numbers = {name: counts.get(name, 0) for name in ("planned", "generated", "consumed")}
    return {**numbers, "aborted": dict(aborted)}


def _evaluated(found: Sequence[tuple[HeldOutScore, Mapping[str, HeldOutScore], int]]) -> dict[str, Any]:
    """The first and the last evaluation.

    Args:
        found: of each the scores on the first held-out set and on the others, and how many answers hold tokens of later
            versions.
    """
    values: dict[str, Any] = {}
    nothing = HeldOutScore(None, None, 0, 0)
    for when, (score, sets, mixed) in zip(("before", "after"), found or [(nothing, {}, 0)] * 2, strict=True):
        values |= {
            f"heldout_reward_{when}": score.sampled,
            f"heldout_reward_ci95_{when}": score.sampled_ci95,
            f"heldout_greedy_{when}": score.greedy,
            f"heldout_greedy_ci95_{when}": score.greedy_ci95,
            f"heldout_mixed_{when}": mixed,
            f"heldout_failed_{when}": score.failed,
            **({f"heldout_pass_at_{when}": score.pass_at} if score.pass_at else {}),
            **({f"heldout_sets_{when}": {name: asdict(one) for name, one in sets.items()}} if sets else {}),
        }
    return values


def write_summary(folder: RunFolder, summary: dict[str, Any]) -> None:
    """Replace `summary.json`."""
    replace_text(folder.summary, json.dumps(summary, indent=2) + "\n")


def write_engines(folder: RunFolder, progress: RunProgress) -> None:
    """Replace `engines.json` by what the engines have measured of themselves; keep it as long as that is nothing."""
    if progress.measured:
        signals = ",\n".join(
            ENGINE_SIGNAL.dump_json(signal).decode() for signal in progress.measured.values()
        )
        replace_text(folder.engines, f"[{signals}]\n")


def load_drawing() -> None:
    """Import what `plot` needs, which takes longer than to draw: a run's processes end meanwhile."""
    with suppress(ImportError):  # `plot` raises it
        import matplotlib.backends.backend_agg
        import matplotlib.figure
        import matplotlib.ticker  # noqa: F401


def plot(path: Path, job: RLJob, progress: RunProgress) -> None:
    """Draw reward, held-out reward and staleness over steps into a PNG file."""
    if not progress.commits and not progress.evaluations:
        return
    aside = path.with_name(f".{path.name}.new")
    with create_plain(aside) as file:
        draw(job, progress).savefig(file, format="png")
    aside.replace(path)


def draw(job: RLJob, progress: RunProgress) -> Figure:
    """The picture; evaluations with answers that hold tokens of later versions have a ring around their score."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    commits, evaluations = progress.commits, progress.evaluations
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(8, 5.2), dpi=130, layout="constrained")
        reward, staleness = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        steps = [line.version for line in commits]
        means = [line.reward_mean or 0.0 for line in commits]
        reward.plot(steps, means, color="#9db8d6", linewidth=0.8, label="training, each step")
        reward.plot(steps, _smooth(means), color="#1f5fa8", linewidth=1.8, label="training, mean of 10 steps")
        versions = [line.version for line in evaluations]
        sampled = [line.heldout_sampled for line in evaluations]
        greedy = [line.heldout_greedy for line in evaluations]
        reward.plot(versions, sampled, "o-", color="#d1592c", markersize=4, label="held out, sampled")
        bounds = [(line.version, line.heldout_sampled, line.heldout_sampled_ci95) for line in evaluations]
        if known := [(at, mean, half) for at, mean, half in bounds if mean is not None and half is not None]:
            reward.fill_between(
                [at for at, _, _ in known],
                [mean - half for _, mean, half in known],
                [mean + half for _, mean, half in known],
                color="#d1592c",
                alpha=0.15,
                linewidth=0,
                label="held out, sampled, 95 % interval",
            )
        for name in dict.fromkeys(name for line in evaluations for name in line.heldout_sets):
            others = [
                (e.version, e.heldout_sets[name].sampled) for e in evaluations if name in e.heldout_sets
            ]
            reward.plot(
                [at for at, _ in others], [mean for _, mean in others], "^-", markersize=3.5, label=name
            )
        if any(value is not None for value in greedy):
            reward.plot(versions, greedy, "s--", color="#5a8f3c", markersize=3.5, label="held out, greedy")
        if mixed := [line for line in evaluations if line.heldout_mixed]:
            reward.plot(
                [line.version for line in mixed],
                [line.heldout_sampled for line in mixed],
                "o",
                color="#d1592c",
                markersize=9,
                fillstyle="none",
                label="held out, some answers with tokens of later versions",
            )
        reward.set_ylabel("mean reward")
        reward.legend(frameon=False, loc="lower right")
        bound = job.spec.pipeline.bound
        reward.set_title(
            f"{job.metadata.name}: {job.spec.pipeline.mode}, maxStaleness {bound}", loc="left", weight="bold"
        )
        seen = [(line.version, line.stats) for line in commits if line.stats is not None]
        at = [version for version, _ in seen]
        staleness.fill_between(
            at, [s.staleness_max for _, s in seen], step="mid", color="#dcdcdc", label="largest"
        )
        staleness.plot(at, [s.staleness_mean for _, s in seen], color="#444444", linewidth=1.2, label="mean")
        staleness.axhline(bound, color="#d1592c", linestyle=":", linewidth=1.2, label="bound")
        # The bound is the newest; it may have been a wider one before.
        staleness.set_ylim(-0.1, max([bound, *(s.staleness_max for _, s in seen)]) + 0.5)
        staleness.set_ylabel("staleness\n(versions)")
        staleness.set_xlabel("step")
        staleness.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 0.98), borderpad=0)
        for axes in (reward, staleness):
            axes.grid(axis="y", color="#eeeeee")
        staleness.xaxis.set_major_locator(MaxNLocator(integer=True))
        staleness.yaxis.set_major_locator(MaxNLocator(integer=True))
        return figure


def _smooth(values: list[float]) -> list[float]:
    """Mean of each value and up to nine before it."""
    return [fmean(values[max(0, i - 9) : i + 1]) for i in range(len(values))]
