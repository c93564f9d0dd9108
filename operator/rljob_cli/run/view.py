"""What `rljob run` shows while it runs, and what all displays say in the same words."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from rljob_cli.run.run_progress import RunProgress, SiteProgress
from rljob_core.held_out import HeldOutScore
from rljob_core.messages import StepMetrics
from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Event


class View(AbstractContextManager["View"], Protocol):
    """Shows a job's progress to the user. All methods are cheap and may be called at any rate."""

    def line(self, line: StepMetrics, progress: RunProgress) -> None:
        """Show a new metrics line: a step, an evaluation or the end of the job."""

    def refresh(self, progress: RunProgress) -> None:
        """Update the display; called at regular intervals."""

    def event(self, event: Event) -> None:
        """Show an event about the job or one of its processes."""

    def changed(self, job: RLJob) -> None:
        """Show that the user changed the job's spec."""

    def note(self, text: str) -> None:
        """Show a message."""


class EventLog:
    """Keeps what happened in a run: `events.log`, one line for each event, over all of its runs.

    Args:
        path: of the file; it is made with its first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, text: str) -> None:
        """Append a line with the time of now, in UTC. A disk that takes no more ends the run elsewhere, not here."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{now} {text}\n")


def decimal(value: float | None) -> str:
    """A figure with three digits, or a dash."""
    return "–" if value is None else f"{value:.3f}"


def score_text(score: HeldOutScore) -> str:
    """The scores on a held-out set: means with their intervals, and pass@k."""
    parts = [
        f"{decimal(mean)}{interval(half)} {sample}"
        for sample, mean, half in (
            ("sampled", score.sampled, score.sampled_ci95),
            ("greedy", score.greedy, score.greedy_ci95),
        )
    ]
    return ", ".join([*parts, *(f"pass@{k} {share:.3f}" for k, share in score.pass_at.items())])


def interval(half: float | None) -> str:
    """Half the width of a mean's 95 % interval; empty if it is not known."""
    return "" if half is None else f" ± {half:.3f}"


def mixed(line: StepMetrics) -> str:
    """How many answers of an evaluation hold tokens of later versions, in brackets; empty if none does."""
    if not line.heldout_mixed:
        return ""
    return f" ({line.heldout_mixed} answers with tokens of later versions, up to {line.heldout_newest})"


def event_text(event: Event) -> str:
    """An event as one line."""
    about = f" {event.about}" if event.about else ""
    return f"{event.reason}{about}: {event.message}"


def site_text(site: SiteProgress) -> str:
    """What is known of a site, in a few words."""
    heard = site.beat_seconds
    if heard is None:
        return "not heard yet"
    said = "connected" if site.connected else f"not heard for {heard:.0f} s"
    if site.outbox_bytes:
        said += f", {megabytes(site.outbox_bytes)} wait there"
    return f"{said}, {megabytes(site.bytes_up)} up, {megabytes(site.bytes_down)} down, {site.trained} trained"


def megabytes(size: int) -> str:
    """A number of bytes, as people read it."""
    return f"{size / 1e6:,.1f} MB"


def title(job: RLJob) -> str:
    """The job's name and how far its rollout may run ahead."""
    pipeline = job.spec.pipeline
    return f"{job.metadata.name} · {pipeline.mode} · maxStaleness {pipeline.bound}"


def changed_text(job: RLJob) -> str:
    """What a patch has changed, as one line."""
    pipeline = job.spec.pipeline
    return (
        f"changed by rljob patch: generation {job.metadata.generation}, {job.spec.steps} steps, {pipeline.mode}, "
        f"maxStaleness {pipeline.bound}"
    )
