"""Reads the files of a run's folder again and again: each only as far as it has changed. Nothing is written."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljob_cli.compare.curve import pools_of
from rljob_cli.page.documents.curves import MetricsColumns
from rljob_cli.page.documents.engines import SeenEngines, engines_of_file
from rljob_cli.page.documents.swaps import SeenSwaps
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.errors import SpecError

_READ_BYTES = 1 << 20
_LONGEST_LINE = 8 << 20
_LARGEST_JSON = 32 << 20
_LOCK_BYTES = 64


class JsonFile:
    """A small JSON file that others replace.

    Attributes:
        content: the newest object in it; empty if there is none.
        problem: why it could not be read, in words; empty if it could, or is not there.
        modified: when it was written, in seconds since 1970.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        self.problem = ""
        self.modified = 0.0
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> bool:
        """Read the file if it has changed; returns whether it has."""
        try:
            found = self.path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return False
            self._seen, self.modified = seen, found.st_mtime
            _check_plain(found)
            content = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            changed, self._seen, self.content, self.problem = self._seen is not None, None, {}, ""
            return changed
        except (OSError, ValueError, RecursionError) as error:
            self.content, self.problem = {}, f"{self.path.name} cannot be read: {words_of(error)}"
            return True
        if isinstance(content, dict):
            self.content, self.problem = content, ""
        else:
            self.content, self.problem = {}, f"{self.path.name} holds no JSON object"
        return True


class RunFiles:
    """The files of one run.

    Attributes:
        identity: the job that the folder belongs to; None if it belongs to none, or `problems` says why not.
        columns: of `metrics.jsonl`.
        generation: how often the columns were read again from the first line.
        engines: of `engines.json`.
        swaps: of weights, as far as any file or heartbeat has said.
        running: whether a process uses the folder now.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.identity: Identity | None = None
        self.swaps = SeenSwaps()
        self.columns = MetricsColumns(swaps=self.swaps)
        self.generation = 0
        self.engines = SeenEngines()
        self.running = False
        self._job = JsonFile(self.folder.job)
        self._summary = JsonFile(self.folder.summary)
        self._status = JsonFile(self.folder.path / "status.json")
        self._job_problem = self._engines_problem = ""
        self._engines_seen: tuple[int, int] | None = None
        self._inode = 0
        self._offset = self._line = 0
        self._rest = b""

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return self._summary.content

    @property
    def status(self) -> dict[str, Any]:
        """`status` of `status.json`."""
        found = self._status.content.get("status")
        return found if isinstance(found, dict) else {}

    @property
    def manifest(self) -> dict[str, Any]:
        """The RLJob, with all changes; empty if it is unknown."""
        return self.identity.manifest if self.identity is not None else {}

    @property
    def problems(self) -> list[str]:
        """What could not be read, in words."""
        found = [
            self._job_problem,
            self._summary.problem,
            self._status.problem,
            self._engines_problem,
        ]
        return [*filter(None, found), *self.columns.problems]

    def refresh(self) -> bool:
        """Read what has changed; returns whether more of `metrics.jsonl` is left to be read at once."""
        self.running = is_running(self.folder)
        if self._job.refresh():
            self._read_identity()
        self._summary.refresh()
        self._status.refresh()
        self._read_engines()
        return self._read_metrics()

    def _read_identity(self) -> None:
        self._job_problem = self._job.problem
        try:
            self.identity = None if self._job_problem else self.folder.identity()
            manifest = self.identity.manifest if self.identity is not None else {"spec": {}}
            if not isinstance(manifest.get("spec"), dict):
                raise TypeError
        except SpecError as error:
            self.identity = None
            self._job_problem = f"job.json cannot be read: {words_of(error.__cause__ or error)}"
        except (TypeError, AttributeError):
            self.identity = None
            self._job_problem = "job.json holds no manifest"
        prices, price = _prices(self.manifest)
        if (prices, price) != self.columns.price:
            self._restart(MetricsColumns(prices=prices, average=price, swaps=self.swaps))

    def _read_engines(self) -> None:
        try:
            found = self.folder.engines.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._engines_seen:
                self._engines_seen, self._engines_problem = seen, ""
                _check_plain(found)
                self.engines = engines_of_file(self.folder.engines.read_bytes(), found.st_mtime, self.swaps)
        except FileNotFoundError:
            self._engines_seen = None
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            self._engines_problem = f"engines.json cannot be read: {words_of(error)}"

    def _restart(self, columns: MetricsColumns) -> None:
        self.columns = columns
        self.generation += 1
        self._inode = self._offset = self._line = 0
        self._rest = b""

    def _read_metrics(self) -> bool:
        """Read the next lines, whole ones only: the last one may be half written."""
        try:
            _check_plain(self.folder.metrics.stat(), most=None)
            with self.folder.metrics.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._inode and (found.st_ino != self._inode or found.st_size < self._offset):
                    prices, price = self.columns.price
                    self._restart(MetricsColumns(prices=prices, average=price, swaps=self.swaps))
                self._inode = found.st_ino
                file.seek(self._offset)
                read = file.read(_READ_BYTES)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self.columns.problems[:] = [f"metrics.jsonl cannot be read: {words_of(error)}"]
            return False
        self._offset += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            self._line += 1
            if line.strip():
                self.columns.add(self._line, line)
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        return len(read) == _READ_BYTES


def is_running(folder: RunFolder) -> bool:
    """Whether a process uses the folder.

    The lock is only tried while the process that is named in it lives: who tries it has it for a moment, and a run that
    starts at that moment would be refused.
    """
    lock = folder.path / ".lock"
    with suppress(OSError, ValueError, SpecError):
        found = lock.stat()
        _check_plain(found)
        pid = int(lock.read_text(encoding="ascii")) if found.st_size <= _LOCK_BYTES else 0
        if Path(f"/proc/{pid}").exists() or not Path("/proc").exists():
            return folder.in_use()
    return False


def _check_plain(found: os.stat_result, *, most: int | None = _LARGEST_JSON) -> None:
    """Refuse what is not read in a moment.

    Raises:
        ValueError: it is a pipe, a folder, or larger than `most` bytes.
    """
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a plain file")
    if most is not None and found.st_size > most:
        raise ValueError(f"it has more than {most >> 20} MB")


def _prices(manifest: dict[str, Any]) -> tuple[dict[str, float], float | None]:
    """`costPerHour` by pool, and its mean over the engines that the pools start with; None if no pool has one."""
    with suppress(TypeError, ValueError, AttributeError):
        pools = pools_of(manifest)
        prices = {pool.name: float(pool.cost_per_hour) for pool in pools if pool.cost_per_hour is not None}
        engines = sum(pool.initial_replicas for pool in pools)
        total = sum(prices.get(pool.name, 0.0) * pool.initial_replicas for pool in pools)
        return prices, total / engines if prices and engines else None
    return {}, None


def words_of(error: BaseException) -> str:
    """Why something failed, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0][:200]
