"""The output of `rljob run` where it is redirected: plain lines, each with the time of day."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console

from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run.view import EventLog, changed_text, decimal, event_text, mixed, score_text
from rljob_core.messages import StepMetrics
from rljob_core.metrics_history import kind_of
from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Event


@dataclass(slots=True)
class TimeLeft:
    """Times of one run, in seconds of any clock.

    Attributes:
        began: when the run did.
    """

    began: float
    _first: tuple[int, float] | None = None
    _newest: tuple[int, float] | None = None

    def committed(self, step: int, now: float) -> None:
        """Take the number of committed steps."""
        self._newest = step, now
        if self._first is None or step < self._first[0]:  # it went back
            self._first = self._newest

    def left(self, steps: int) -> float | None:
        """Seconds until so many steps are committed; None before two are known."""
        if self._first is None or self._newest is None or self._newest[0] <= self._first[0]:
            return None
        seconds = (self._newest[1] - self._first[1]) / (self._newest[0] - self._first[0])
        return max(0, steps - self._newest[0]) * seconds

    def text(self, steps: int, now: float) -> str:
        """`elapsed 1:02  left 0:31`."""
        left = self.left(steps)
        return f"elapsed {_clock(now - self.began)}  left {'–' if left is None else _clock(left)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_PLAIN_SECONDS = 2.0


class PlainView:
    """Prints plain lines: at most one step every two seconds, but every evaluation, event and message."""

    def __init__(self, console: Console, job: RLJob, events: EventLog) -> None:
        self._console = console
        self._log = events
        self._times = TimeLeft(time.monotonic())
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
            self._times.committed(line.version, time.monotonic())
            self._held = (line, progress)
            if time.monotonic() >= self._next:
                self._flush()
        elif kind == "evaluation":
            self._flush()
            for name, score in line.held_out.items():
                about = f"held-out {name}" if name else "held-out"
                self._print(f"{about} at version {line.version}: {score_text(score)}{mixed(line)}")
            if line.unscored:
                self._print(f"warning: held-out at version {line.version}: {line.unscored}")

    def refresh(self, progress: RunProgress) -> None:  # noqa: ARG002  the protocol's
        """Print the kept step if two seconds have passed since the last one."""
        if self._held is not None and time.monotonic() >= self._next:
            self._flush()

    def event(self, event: Event) -> None:
        """Print the event, after the kept step if there is one."""
        self._log.add(event_text(event))
        self._flush()
        self._print(event_text(event))

    def changed(self, job: RLJob) -> None:
        """Print the job's new pipeline settings."""
        self._steps = job.spec.steps
        self.note(changed_text(job))

    def note(self, text: str) -> None:
        """Print the message, after the kept step if there is one."""
        self._log.add(text)
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
        planned = progress.planned(self._steps)
        away = [
            name
            for name, site in progress.sites.items()
            if site.beat_seconds is not None and not site.connected
        ]
        absent = f"away: {', '.join(away)}  " if away else ""
        self._print(
            f"step {line.step}/{planned}  reward {decimal(line.reward_mean)}  "
            f"staleness {staleness}  {rate:,.0f} tokens/s  engines {line.engines}  "
            f"{absent}{self._times.text(planned, time.monotonic())}"
        )

    def _print(self, text: str) -> None:
        self._console.print(
            f"{time.strftime('%H:%M:%S')}  {text}", markup=False, highlight=False, soft_wrap=True
        )
