"""The output of `rljob run` on a terminal: one panel that is redrawn in place, and fits into it."""

from __future__ import annotations

import os
import sys
import termios
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from rljob_cli.run.plain_view import PlainView
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run.view import (
    EventLog,
    View,
    changed_text,
    decimal,
    event_text,
    interval,
    mixed,
    score_text,
    site_text,
    title,
)
from rljob_core.messages import StepMetrics
from rljob_core.metrics_history import kind_of
from rljob_core.spec import RLJob
from rljob_operator.cluster.local.cluster import BACK_OFF, FAILED
from rljob_operator.cluster.port import Event

_EVENTS_SHOWN = 6
_WIDE = 100
"""Columns from which on two figures stand beside each other."""
_FRAME = 4
"""Columns of the panel's border and padding."""
_BELOW = 2
"""Lines that stay free below the panel."""
EARLIER = "of an earlier run"
"""What the figures are until this run has trained a step."""
_RESTARTS = {"TrainerRestarted", BACK_OFF, FAILED}
"""Reasons of events after which the figures are those of processes that have ended."""


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

    def __init__(self, console: Console, job: RLJob, events: EventLog, *, stale: str = EARLIER) -> None:
        self._console = console
        self._log = events
        self._stale = stale
        self._terminal = ExitStack()
        self._title = title(job)
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
        self._terminal.enter_context(without_echo())
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
        self._terminal.close()

    def line(self, line: StepMetrics, progress: RunProgress) -> None:
        """Update the trainer's rate and the display from a new metrics line."""
        if kind_of(line) == "commit":
            self._stale = ""
        if kind_of(line) == "commit" and line.stats is not None:
            self._trainer_rate.commit(line.stats.tokens)
        if line.heldout_mixed:
            self.note(f"held-out at version {line.version}:{mixed(line)}")
        if line.unscored:
            self.note(f"warning: held-out at version {line.version}: {line.unscored}")
        self.refresh(progress)

    def refresh(self, progress: RunProgress) -> None:
        """Display this progress from the next redraw on."""
        self._progress = progress
        self._bar.update(self._task, completed=progress.step, total=progress.planned(self._steps))

    def event(self, event: Event) -> None:
        """Add the event to the recent events; one of a process that ended marks the figures as old."""
        if event.reason in _RESTARTS:
            self._stale = f"as of before {time.strftime('%H:%M:%S')}: {event.reason}"
        self.note(event_text(event))

    def changed(self, job: RLJob) -> None:
        """Update the title and the bar, and report the change among the recent events."""
        self._title = title(job)
        self._steps = job.spec.steps
        self.note(changed_text(job))

    def note(self, text: str) -> None:
        """Add the message, with the time of day, to the recent events."""
        self._log.add(text)
        self._events.append(f"{time.strftime('%H:%M:%S')}  {text}")

    def _draw(self) -> Panel:
        progress, width = self._progress, self._console.width
        stale = self._stale if progress.commits else ""
        wide = width >= _WIDE
        table = Table.grid(padding=(0, 3))
        for left in (True, False, True, False) if wide else (True, False):
            style = "dim" if left or stale else "bold"
            table.add_column(style=style, no_wrap=left, overflow="fold")
        rows = self._rows(progress)
        for shown in rows if wide else [half for row in rows for half in (row[:2], row[2:])]:
            table.add_row(*shown)
        parts: list[Table | Bar | Text] = [table, *_held_out(progress), *_sites(progress), self._bar]
        if stale:
            parts.insert(-1, Text(f"figures {stale}", style="yellow", overflow="fold"))
        used = len(self._console.render_lines(self._panel(parts))) + _BELOW
        if events := self._fitting(width - _FRAME, self._console.height - used):
            parts.append(Text("\n".join(events), style="dim", overflow="fold"))
        return self._panel(parts)

    def _panel(self, parts: list[Table | Bar | Text]) -> Panel:
        return Panel(Group(*parts), title=self._title, title_align="left", padding=(0, 1))

    def _fitting(self, width: int, height: int) -> list[str]:
        """The newest events that fit, whole, into so many columns and lines."""
        shown: list[str] = []
        for text in reversed(self._events):
            height -= len(Text(text).wrap(self._console, max(width, 1)))
            if height < 0:
                break
            shown.insert(0, text)
        return shown

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
                decimal(commit.reward_mean if commit else None),
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
                " → ".join(
                    decimal(line.heldout_greedy) + interval(line.heldout_greedy_ci95)
                    for line in _ends(held_out)
                )
                or "–",
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


def open_view(console: Console, job: RLJob, events: EventLog, *, stale: str = EARLIER) -> View:
    """Return a `LiveView` if the console is a terminal, else a `PlainView`.

    Args:
        console: where to write.
        job: that runs.
        events: a file that gets what happens, too.
        stale: what the first figures are, before a step ends that is seen.
    """
    if not console.is_terminal:
        return PlainView(console, job, events)
    return LiveView(console, job, events, stale=stale)


def _held_out(progress: RunProgress) -> list[Text]:
    """A line for each held-out set of the newest evaluation that has more to say than the table: several, or pass@k."""
    newest = progress.evaluations[-1].held_out if progress.evaluations else {}
    return [
        Text(f"held out {name or 'now'}: {score_text(score)}", overflow="fold")
        for name, score in newest.items()
        if len(newest) > 1 or score.pass_at
    ]


def _sites(progress: RunProgress) -> list[Text]:
    """A line for each site."""
    return [Text(f"site {name}: {site_text(site)}", overflow="fold") for name, site in progress.sites.items()]


def _sampled(line: StepMetrics) -> str:
    """An evaluation's score, with the numbers of answers that hold tokens of later versions, and that failed."""
    mixed = f" ({line.heldout_mixed} mixed)" if line.heldout_mixed else ""
    failed = f" ({line.heldout_failed} failed)" if line.heldout_failed else ""
    return f"{decimal(line.heldout_sampled)}{interval(line.heldout_sampled_ci95)}{mixed}{failed}"


def _ends(lines: list[StepMetrics]) -> list[StepMetrics]:
    """Return the first and the last line."""
    return lines if len(lines) < 2 else [lines[0], lines[-1]]


_LOCAL_FLAGS = 3
"""Place of the local modes among what `tcgetattr` returns."""
_NO_TERMINAL = (AttributeError, termios.error, ValueError, OSError)
"""What is raised where the standard input is closed, or is no terminal of this process's session."""


@contextmanager
def without_echo() -> Iterator[None]:
    """Have the terminal of the standard input write nothing that is typed within the block; Ctrl-C works as ever.

    The characters `^C` would go to the next line where the current one is full, and all that is drawn in place would
    then be drawn a line too low. Without a terminal, or in the background of its shell, nothing changes.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        quiet = termios.tcgetattr(terminal)
    except _NO_TERMINAL:
        yield
        return
    quiet[_LOCAL_FLAGS] &= ~termios.ECHO
    _set(terminal, quiet)
    try:
        yield
    finally:
        _set(terminal, before)


def _set(terminal: int, modes: list[int | list[bytes | int]]) -> None:
    """Set the terminal's modes, if this process is in its foreground: the kernel stops any other that does."""
    with suppress(*_NO_TERMINAL):
        if os.tcgetpgrp(terminal) == os.getpgrp():
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
