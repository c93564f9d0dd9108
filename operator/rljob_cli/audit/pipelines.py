"""Changes of `spec.pipeline` during the run, and the staleness bound that each buffer had under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rljob_cli.audit.evidence import Violation
from rljob_core.records import BufferOpened, PipelineSet


class Pipelines:
    """What the ledger says of the pipeline, in order, and what the buffers that opened in between make of it.

    Attributes:
        said: every word on it; the first is what the job began with.
        broken: buffers whose stamp is not the newest word's, or that opened too early for it.
    """

    def __init__(self) -> None:
        self.said: list[PipelineSet] = []
        self.broken: list[Violation] = []

    def change(self, record: PipelineSet, opened: Iterable[int]) -> None:
        """A word on it. It binds the next buffer: not one that is open, and leaves none out.

        Args:
            opened: steps that have had a buffer, or were restored after the ledger had lost it.
        """
        following = max(opened, default=-1) + 1
        if record.step != following:
            text = f"was to bind buffers from step {record.step} on, but the next to open was that of {following}"
            self.broken.append(Violation((f"step {record.step}",), text))
        self.said.append(record)

    def open(self, record: BufferOpened, *, committed: int) -> None:
        """A buffer opens, when that many steps are committed."""
        name = (f"step {record.step}",)
        if self.said:
            newest = self.said[-1]
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
        for record in self.said:
            yield {
                "from_step": record.step,
                "mode": record.mode,
                "max_staleness": record.max_staleness,
                "inflight": record.inflight,
                "max_attempts": record.max_attempts,
                "max_resamples": record.max_resamples,
            }
