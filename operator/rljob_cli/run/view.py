"""Console output of `rljob run`: a live display on a terminal, plain lines if the output is redirected."""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from rljob_cli.run.run_progress import RunProgress, kind_of
from rljob_core.messages import StepMetrics
from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Event

_PLAIN_SECONDS = 2.0
_EVENTS_SHOWN = 6


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


def open_view(console: Console, job: RLJob) -> View:
    """Return a `LiveView` if the console is a terminal, else a `PlainView`."""
    return LiveView(console, job) if console.is_terminal else PlainView(console, job)


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _mixed(line: StepMetrics) -> str:
    """How many answers of an evaluation hold tokens of later versions, in brackets; empty if none does."""
    if not line.heldout_mixed:
        return ""
    return f" ({line.heldout_mixed} answers with tokens of later versions, up to {line.heldout_newest})"


def _event_text(event: Event) -> str:
    about = f" {event.about}" if event.about else ""
    return f"{event.reason}{about}: {event.message}"


def _title(job: RLJob) -> str:
    pipeline = job.spec.pipeline
    return f"{job.metadata.name} · {pipeline.mode} · maxStaleness {pipeline.bound}"


def _changed_text(job: RLJob) -> str:
    pipeline = job.spec.pipeline
    return (
        f"changed by rljob patch: generation {job.metadata.generation}, {job.spec.steps} steps, {pipeline.mode}, "
        f"maxStaleness {pipeline.bound}"
    )


# ----------------------------------------------------------------------------------------------------- lines


class PlainView:
    """Prints plain lines: at most one step every two seconds, but every evaluation, event and message."""

    def __init__(self, console: Console, job: RLJob) -> None:
        self._console = console
        self._steps = job.spec.steps
        self._next = 0.0
        self._held: tuple[StepMetrics, RunProgress] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()

    def line(self, line: StepMetrics, progress: RunProgress) -> None:
        """Print an evaluation at once, and a step if two seconds have passed since the last; else keep the step."""
        kind = kind_of(line)
        if kind == "commit":
            self._held = (line, progress)
            if time.monotonic() >= self._next:
                self._flush()
        elif kind == "evaluation":
            self._flush()
            self._print(
                f"held-out at version {line.version}: {_decimal(line.heldout_sampled)} sampled, "
                f"{_decimal(line.heldout_greedy)} greedy{_mixed(line)}"
            )

    def refresh(self, progress: RunProgress) -> None:  # noqa: ARG002  the protocol's
        """Print the kept step if two seconds have passed since the last one."""
        if self._held is not None and time.monotonic() >= self._next:
            self._flush()

    def event(self, event: Event) -> None:
        """Print the event."""
        self._print(_event_text(event))

    def changed(self, job: RLJob) -> None:
        """Print the job's new pipeline settings."""
        self._steps = job.spec.steps
        self.note(_changed_text(job))

    def note(self, text: str) -> None:
        """Print the message, after the kept step if there is one."""
        self._flush()
        self._print(text)

    def _flush(self) -> None:
        if self._held is None:
            return
        line, progress = self._held
        self._held = None
        self._next = time.monotonic() + _PLAIN_SECONDS
        stats = line.stats
        staleness = "–" if stats is None else f"{stats.staleness_mean:.2f} (max {stats.staleness_max})"
        rate = progress.rollout.per_second or line.tokens_per_second
        self._print(
            f"step {line.step}/{progress.planned(self._steps)}  reward {_decimal(line.reward_mean)}  "
            f"staleness {staleness}  {rate:,.0f} tokens/s  engines {line.engines}"
        )

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


# ------------------------------------------------------------------------------------------------- live display


@dataclass(slots=True)
class _TrainerRate:
    """The trainer's tokens per second between the last two commits."""

    at: float | None = None
    per_second: float | None = None

    def commit(self, tokens: int) -> None:
        now = time.monotonic()
        if self.at is not None and now - self.at > 0.01:
            self.per_second = tokens / (now - self.at)
        self.at = now


class LiveView:
    """Redraws one panel in place: metrics, engines, queues, recent events, and a bar with the time left."""

    def __init__(self, console: Console, job: RLJob) -> None:
        self._title = _title(job)
        self._steps = job.spec.steps
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._trainer_rate = _TrainerRate()
        self._progress = RunProgress()
        self._bar = Bar(
            TextColumn("step"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("step", total=job.spec.steps)
        self._live = Live(self._draw(), console=console, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def line(self, line: StepMetrics, progress: RunProgress) -> None:
        """Update the trainer's rate and the display from a new metrics line."""
        if kind_of(line) == "commit" and line.stats is not None:
            self._trainer_rate.commit(line.stats.tokens)
        if line.heldout_mixed:
            self.note(f"held-out at version {line.version}:{_mixed(line)}")
        self.refresh(progress)

    def refresh(self, progress: RunProgress) -> None:
        """Display this progress from the next redraw on."""
        self._progress = progress
        self._bar.update(self._task, completed=progress.step, total=progress.planned(self._steps))

    def event(self, event: Event) -> None:
        """Add the event to the recent events."""
        self.note(_event_text(event))

    def changed(self, job: RLJob) -> None:
        """Update the title and the bar, and report the change among the recent events."""
        self._title = _title(job)
        self._steps = job.spec.steps
        self.note(_changed_text(job))

    def note(self, text: str) -> None:
        """Add the message, with the time of day, to the recent events."""
        self._events.append(f"{time.strftime('%H:%M:%S')}  {text}")

    def _draw(self) -> Panel:
        progress = self._progress
        table = Table.grid(padding=(0, 3))
        for left in (True, False, True, False):
            table.add_column(style="dim" if left else "bold", no_wrap=True)
        for row in self._rows(progress):
            table.add_row(*row)
        parts: list[Table | Bar | Text] = [table, self._bar]
        if self._events:
            parts.append(Text("\n".join(self._events), style="dim", overflow="ellipsis", no_wrap=True))
        return Panel(Group(*parts), title=self._title, title_align="left", padding=(0, 1))

    def _rows(self, progress: RunProgress) -> list[tuple[str, str, str, str]]:
        commit = progress.commits[-1] if progress.commits else None
        held_out = progress.evaluations
        largest, mean = progress.staleness
        queues = progress.latest.queues if progress.latest else {}
        engines = list(progress.engines.values())
        running, waiting = sum(e.running for e in engines), sum(e.waiting for e in engines)
        trained = self._trainer_rate.per_second
        return [
            (
                "reward",
                _decimal(commit.reward_mean if commit else None),
                "rollout tokens/s",
                f"{progress.rollout.per_second:,.0f}",
            ),
            (
                "held out",
                " → ".join(map(_sampled, _ends(held_out))) or "–",
                "trainer tokens/s",
                "–" if trained is None else f"{trained:,.0f}",
            ),
            (
                "greedy",
                " → ".join(_decimal(line.heldout_greedy) for line in _ends(held_out)) or "–",
                "engines",
                f"{len(engines)} ({running} running, {waiting} waiting)",
            ),
            (
                "staleness",
                "–" if mean is None else f"{mean:.2f} (max {largest})",
                "queues",
                ", ".join(f"{name} {depth}" for name, depth in queues.items()) or "–",
            ),
        ]


def _sampled(line: StepMetrics) -> str:
    """An evaluation's score, with the number of answers that hold tokens of later versions."""
    mixed = f" ({line.heldout_mixed} mixed)" if line.heldout_mixed else ""
    return f"{_decimal(line.heldout_sampled)}{mixed}"


def _ends(lines: list[StepMetrics]) -> list[StepMetrics]:
    """Return the first and the last line."""
    return lines if len(lines) < 2 else [lines[0], lines[-1]]
