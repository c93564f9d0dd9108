"""A `View` that shows no progress: what happens goes to standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import typer

from rljob_cli.run.run_progress import RunProgress
from rljob_core.messages import StepMetrics
from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Event


class Notes:
    """Prints messages only."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to print."""

    def line(self, line: StepMetrics, progress: RunProgress) -> None:
        """Print nothing."""

    def refresh(self, progress: RunProgress) -> None:
        """Print nothing."""

    def event(self, event: Event) -> None:
        """Print nothing."""

    def changed(self, job: RLJob) -> None:
        """Print nothing."""

    def note(self, text: str) -> None:
        """Print the message."""
        typer.echo(text, err=True)
