"""One run with its documents, kept up to date as long as somebody looks at it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rljob_cli.page.auditing import RunAudits
from rljob_cli.page.documents.buffers import buffers_document
from rljob_cli.page.documents.engines import SeenEngines, engines_document
from rljob_cli.page.documents.timeline import timeline
from rljob_cli.page.documents.values import finite, mapping, text, whole
from rljob_cli.page.files import RunFiles, words_of
from rljob_cli.page.kept_answers import KeptAnswers
from rljob_cli.page.streams import RunStreams

_REFRESH_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
_CONDITIONS = ("TrainerStarved", "RolloutStarved", "Stalled", "Failed", "Suspended")


class PageRun:
    """One run.

    Args:
        path: its output folder.

    Attributes:
        looked_at: when a document was asked for last, on the monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = RunFiles(path)
        self.audits = RunAudits(path)
        self.streams = RunStreams(self.files, self.audits)
        self.answers = KeptAnswers(path)
        self.looked_at = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._first = asyncio.Event()
        self._problem = ""

    async def open(self) -> None:
        """Read the files once, and follow them and the streams until `close`; one that was closed stays so."""
        if not self._tasks and not self.streams.closing:
            self._tasks = [
                asyncio.create_task(self._follow_files()),
                asyncio.create_task(self._follow_streams()),
            ]
        await self._first.wait()

    async def close(self) -> None:
        """Stop following; who waits for the first reading waits no longer."""
        self._first.set()
        self.streams.closing = True
        left = set(self._tasks)
        while left:
            # More than once: what starts a server, or stops one, may end by itself in spite of a cancellation.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        self._tasks = []

    async def _follow_files(self) -> None:
        while True:
            more = False
            try:
                more = self.files.refresh()
                self._problem = ""
            except Exception as error:  # whatever a file holds, the page answers, and says so
                self._problem = f"the run's files cannot be read now: {words_of(error)}"
            self._first.set()  # the first part of a long file is shown at once
            await asyncio.sleep(0 if more else _REFRESH_SECONDS)

    async def _follow_streams(self) -> None:
        await self._first.wait()
        await self.streams.follow()

    # ------------------------------------------------------------------------------------------ documents

    def state_document(self) -> dict[str, Any]:
        """The head of the page, and a number for each other document that changes with it."""
        files, streams, columns = self.files, self.streams, self.files.columns
        summary = files.summary
        pipeline = mapping(columns.latest.get("pipeline"))
        spec = files.manifest.get("spec", {})
        metadata = mapping(files.manifest.get("metadata"))
        return {
            "name": text(metadata.get("name")) or self.path.name,
            "path": str(self.path),
            "state": self.run_state,
            "running": files.running,
            "message": columns.message or text(summary.get("message")),
            "problems": [
                *files.problems,
                *filter(None, [self._problem, streams.problem, *streams.story.problems[:3]]),
            ],
            "step": columns.steps,
            "steps": max(whole(spec.get("steps")), columns.steps),
            "mode": text(pipeline.get("mode")) or text(summary.get("mode")),
            "max_staleness": finite(pipeline.get("max_staleness", summary.get("max_staleness"))),
            "reward": columns.last("reward_mean"),
            "held_out": columns.last("heldout_sampled"),
            "seconds": columns.last("seconds"),
            "wall_seconds": finite(summary.get("wall_seconds")),
            "cost": columns.last("cost"),
            "conditions": self._conditions(),
            "trajectories": mapping(columns.latest.get("trajectories")),
            "aborted": mapping(columns.latest.get("aborted")),
            "verdict": (self.audits.findings or {}).get("verdict", ""),
            "audit_state": self.audits.state,
            "ledger": {"read": streams.read, "total": streams.total, "whole": streams.whole},
            "revisions": {
                "curves": f"{self._generation}:{len(columns)}",
                "ledger": streams.revision,
                "audit": self.audits.revision,
            },
        }

    @property
    def run_state(self) -> str:
        """One word for the run's state."""
        files = self.files
        if files.running:
            return "running" if len(files.columns) else "starting"
        if files.identity is None:
            return "damaged" if files.problems else "no run"
        if files.columns.finished:
            return {"Succeeded": "finished", "Failed": "failed"}.get(files.columns.finished, "ended")
        exit_ = text(files.summary.get("exit"))
        if exit_ in {"Succeeded", "Failed", "Interrupted"}:
            return {"Succeeded": "finished", "Failed": "failed"}.get(exit_, "interrupted")
        return "interrupted" if len(files.columns) else "empty"

    def _conditions(self) -> list[dict[str, str]]:
        found = self.files.status.get("conditions")
        return [
            {name: text(condition.get(name)) for name in ("type", "reason", "message")}
            for condition in (found if isinstance(found, list) else [])
            if isinstance(condition, dict)
            and condition.get("type") in _CONDITIONS
            and condition.get("status") == "True"
        ]

    @property
    def _generation(self) -> str:
        return f"{self.files.generation}.{self.files.columns.generation}"

    def curves_document(self, start: int, generation: str) -> dict[str, Any]:
        """A page of rows from `start` on; from the first, if earlier ones do not count any more."""
        columns = self.files.columns
        if generation != self._generation or start > len(columns):
            start = 0
        return {**columns.page(start), "generation": self._generation, "charts": columns.charts()}

    def timeline_document(self, start: float | None, end: float | None, buckets: int) -> dict[str, Any]:
        """A window of the timeline."""
        engines = self.seen_engines
        document = timeline(
            self.streams.story,
            start=start,
            end=end,
            buckets=buckets,
            slots={**self.files.engines.slots, **engines.slots},
            phases=self.streams.engines.phases,
            publishing=self.files.columns.by_version("stats.seconds_publishing"),
            swaps=self.files.swaps,
            evaluating=self.files.columns.by_version("heldout_seconds", kind="evaluation"),
            now=time.time() if self.files.running and self.streams.heard else None,
        )
        return {**document, "read": self.streams.read, "total": self.streams.total}

    def buffers_document(self) -> dict[str, Any]:
        """The staleness buffers now."""
        return {**buffers_document(self.streams.state), "problem": self.streams.state_problem}

    @property
    def seen_engines(self) -> SeenEngines:
        """The engines by the newest heartbeats that are known."""
        return self.streams.engines if self.streams.heard else self.files.engines

    def engines_document(self) -> dict[str, Any]:
        """The engines now, or as they were at last."""
        return engines_document(
            self.seen_engines,
            now=time.time(),
            version=self.files.columns.steps,
            live=self.streams.heard and self.files.running,
        )

    def audit_document(self) -> dict[str, Any]:
        """What the newest audit found."""
        audits = self.audits
        return {
            "state": audits.state,
            "message": audits.message,
            "age": max(time.time() - audits.at, 0.0) if audits.at else None,
            "findings": audits.findings,
        }

    @property
    def manifest(self) -> dict[str, Any]:
        """The RLJob, once the files were read; empty if it is unknown."""
        return self.files.manifest
