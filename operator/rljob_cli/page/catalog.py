"""The runs that a page was given: those on its command line, and those in the folders on it."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_cli.page.documents.values import finite, text
from rljob_cli.page.files import JsonFile, is_running
from rljob_cli.page.page_run import PageRun
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError

_SCAN_SECONDS = 3.0
_OPEN_RUNS = 12
_MOST_RUNS = 20_000
_IDLE_SECONDS = 600.0
_CLOSING_SECONDS = 60.0
_MARKS = ("job.json", "metrics.jsonl", "summary.json", ".lock")


@dataclass(slots=True)
class _Listed:
    """A run as the list of runs shows it: what `summary.json` says, read when it has changed."""

    path: Path
    seen: int = -1
    row: dict[str, Any] | None = None


class Catalog:
    """The runs.

    A run's id is its place in the order in which runs were found: no path comes from a browser.

    Args:
        paths: output folders of runs, or folders that hold such folders.

    Raises:
        SpecError: a path is no folder.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._folders: list[Path] = []
        self._listed: list[_Listed] = []
        self._ids: dict[Path, int] = {}
        self._open: dict[int, PageRun] = {}
        self._rows: list[dict[str, Any]] = []
        self._scanned = -math.inf
        self._one = asyncio.Lock()  # one thread at once changes what is above
        for path in paths:
            if not path.is_dir():
                what = "is not a folder" if path.exists() else "does not exist"
                raise SpecError(
                    str(path),
                    f"{what}: give the output folder of an `rljob run`, or a folder of such folders",
                )
            if is_run(path) or not _holds_runs(path):
                self._find(path.resolve())
            else:
                self._folders.append(path.resolve())

    def _find(self, path: Path) -> None:
        if path not in self._ids and len(self._listed) < _MOST_RUNS:
            self._ids[path] = len(self._listed)
            self._listed.append(_Listed(path))

    async def page(self, find: str, *, start: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
        """Some of the runs, the newest change first.

        Args:
            find: part of the path or of the job's name, in any case.
            start: how many to pass over.
            limit: how many to return at most.

        Returns:
            How many match, and the rows.
        """
        async with self._one:
            return await asyncio.to_thread(self._page, find.lower(), start, limit)

    def _page(self, find: str, start: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
        self._scan()
        rows = [row for row in self._rows if find in f"{row['path']} {row.get('job', '')}".lower()]
        shown = [dict(row) for row in rows[start : start + limit]]
        for row in shown:
            if is_running(RunFolder(Path(row["path"]))):
                row["state"] = "running"
        return len(rows), shown

    def _scan(self) -> None:
        """Look for new runs in the folders and read what has changed, if the last time is a while ago."""
        now = time.monotonic()
        if now - self._scanned < _SCAN_SECONDS:
            return
        for folder in self._folders:
            for path in [folder] if is_run(folder) else sorted(_runs_in(folder)):
                self._find(path)
        rows = [{"id": number, **_row(listed)} for number, listed in enumerate(self._listed)]
        self._rows = sorted(rows, key=lambda row: -row["modified"])
        self._scanned = time.monotonic()

    async def run(self, number: int) -> PageRun | None:
        """The run of an id, open; None if there is none. Runs that nobody has looked at for long are closed."""
        if not 0 <= number < len(self._listed):
            async with self._one:
                await asyncio.to_thread(self._scan)
        if not 0 <= number < len(self._listed):
            return None
        found = self._open.get(number)
        if found is None:
            found = self._open[number] = PageRun(self._listed[number].path)
        found.looked_at = time.monotonic()
        await self._close_others(number)
        await found.open()
        return found

    async def close_idle(self) -> None:
        """Close runs that nobody has looked at for long, until cancelled."""
        while True:
            await asyncio.sleep(_CLOSING_SECONDS)
            await self._close_others(None)

    async def _close_others(self, number: int | None) -> None:
        by_age = sorted(self._open, key=lambda other: self._open[other].looked_at)
        now = time.monotonic()
        for place, other in enumerate(by_age):
            too_many = len(by_age) - place > _OPEN_RUNS
            run = self._open.get(other)  # another request may have closed it meanwhile
            if run is not None and other != number and (too_many or now - run.looked_at > _IDLE_SECONDS):
                del self._open[other]
                await run.close()

    async def close(self) -> None:
        """Close all runs."""
        for run in list(self._open.values()):
            await run.close()
        self._open.clear()


def _row(listed: _Listed) -> dict[str, Any]:
    folder = RunFolder(listed.path)
    try:
        found = folder.summary.stat()
        if found.st_mtime_ns != listed.seen or listed.row is None:
            listed.row = {**_summary_row(folder.summary), "modified": found.st_mtime}
            listed.seen = found.st_mtime_ns
    except OSError:
        listed.row = {
            "state": "empty" if listed.path.is_dir() else "gone",
            "modified": _modified(listed.path),
        }
    return {"name": listed.path.name, "path": str(listed.path), **listed.row}


def is_run(path: Path) -> bool:
    """Whether a folder is the output folder of a run."""
    return any((path / name).exists() for name in _MARKS)


def _runs_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir() and is_run(Path(entry.path))]
    except OSError:
        return []


def _holds_runs(folder: Path) -> bool:
    """Whether a folder that is no run has folders, or is empty: then runs may come."""
    with os.scandir(folder) as entries:
        names = list(entries)
    return not names or any(entry.is_dir() for entry in names)


def _summary_row(path: Path) -> dict[str, Any]:
    file = JsonFile(path)
    file.refresh()
    if not (summary := file.content):
        return {"state": "damaged"}
    states = {
        "Succeeded": "finished",
        "Failed": "failed",
        "Running": "interrupted",
        "Interrupted": "interrupted",
    }
    return {
        "state": states.get(text(summary.get("exit")), "ended"),
        "job": text(summary.get("job")),
        "step": finite(summary.get("steps")),
        "steps": finite(summary.get("steps_planned")),
        "mode": text(summary.get("mode")),
        "held_out": finite(summary.get("heldout_reward_after")),
        "wall_seconds": finite(summary.get("wall_seconds")),
    }


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
