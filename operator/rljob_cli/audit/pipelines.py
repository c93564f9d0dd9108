"""Changes of `spec.pipeline` during the run, and the staleness bound that each buffer had under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rljob_cli.audit.evidence import Violation
from rljob_core.records import BufferOpened, PipelineSet


class Pipelines:
    """The pipeline settings in the ledger, in order, and the buffers that were opened against them.

    Attributes:
        settings: all `PipelineSet` records; the first has the settings that the job started with.
        broken: buffers that were not opened under the newest settings, or were opened too early for their bound.
    """

    def __init__(self) -> None:
        self.settings: list[PipelineSet] = []
        self.broken: list[Violation] = []

    def change(self, record: PipelineSet, opened: Iterable[int]) -> None:
        """Add new settings; they must apply from the next buffer on: to no open one, and without a gap.

        Args:
            record: the new settings.
            opened: steps whose buffer was opened, or whose commit was restored after the ledger had lost the buffer.
        """
        following = max(opened, default=-1) + 1
        if record.step != following:
            text = f"was to bind buffers from step {record.step} on, but the next to open was that of {following}"
            self.broken.append(Violation((f"step {record.step}",), text))
        self.settings.append(record)

    def open(self, record: BufferOpened, *, committed: int) -> None:
        """Check a buffer that is opened when `committed` steps are committed."""
        name = (f"step {record.step}",)
        if self.settings:
            newest = self.settings[-1]
            if (record.mode, record.max_staleness) != (newest.mode, newest.max_staleness):
                text = (
                    f"opened under {record.mode} {record.max_staleness}, but {newest.mode} {newest.max_staleness} "
                    f"was in force from step {newest.step} on"
                )
                self.broken.append(Violation(name, text))
        if record.step - record.max_staleness > committed:
            text = f"opened at version {committed}, too early for its bound of {record.max_staleness}"
            self.broken.append(Violation(name, text))

    def summary(self) -> Iterator[dict[str, object]]:
        """The history of it, for counts."""
        for record in self.settings:
            yield {
                "from_step": record.step,
                "mode": record.mode,
                "max_staleness": record.max_staleness,
                "inflight": record.inflight,
                "max_attempts": record.max_attempts,
                "max_resamples": record.max_resamples,
                "window": record.window,
            }
