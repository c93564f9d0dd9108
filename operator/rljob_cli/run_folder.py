"""The folder of one run: what lies where, which job it belongs to, and who uses it now.

| entry | holds |
|---|---|
| `job.json` | the job's identity: name, uid, model, the whole spec that it was last run with |
| `nats/` | the embedded server's configuration, log and streams (the ledger among them) |
| `weights/`, `checkpoints/`, `checkpoint` | weight versions; saved states; the newest of them |
| `trainer/` | what the trainer fed to backward, in its own words |
| `logs/`, `pods/`, `pids.json`, `status.json` | processes: see `rljob_operator.processes` |
| `metrics.jsonl`, `summary.json`, `reward.png` | results |
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, immutable_fields

# Compared in other ways: a model's folder may have moved, so its content is; the embedded server has no URL.
_OTHERWISE = {"spec.model.uri", "spec.nats.url"}
# Of no meaning here: all pools are on this machine.
_ELSEWHERE = {"spec.rollout.pools.datacenter"}
FIXED: Mapping[str, str] = {
    path: mark.because
    for path, mark in immutable_fields(RLJob)
    if path not in _OTHERWISE and path not in _ELSEWHERE
}
"""What a run may not change about the job that it goes on with, and why: what the API server keeps, too.

All else (steps, rates, replicas, mode, …) may be another from one run to the next.
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which job a folder holds.

    Attributes:
        uid: of this job alone; a job of the same name started anew has another.
        model: identity of the initial model (`rljob_runtime.checkpoint.model_identity`).
        nats_url: of the server that holds its streams; empty for the embedded one.
        manifest: the RLJob as JSON.
    """

    name: str
    namespace: str
    uid: str
    model: str
    nats_url: str
    manifest: dict[str, Any]


class RunFolder:
    """Paths in the folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.job = self.path / "job.json"
        self.nats = self.path / "nats"
        self.weights = self.path / "weights"
        self.checkpoints = self.path / "checkpoints"
        self.checkpoint = self.path / "checkpoint"
        self.trainer = self.path / "trainer"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.plot = self.path / "reward.png"
        self._lock = self.path / ".lock"

    def identity(self) -> Identity | None:
        """The job that it holds; None if it holds none.

        Raises:
            SpecError: `job.json` does not read.
        """
        try:
            return Identity(**json.loads(self.job.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise SpecError(str(self.job), f"does not read ({error}): choose another --output") from error

    def claim(self, identity: Identity) -> None:
        """Make the folder, and write down which job it holds."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.nats, self.weights, self.checkpoints, self.trainer):
            folder.mkdir(exist_ok=True)
        if not self.checkpoint.is_symlink():
            self.checkpoint.symlink_to(Path(self.checkpoints.name) / "latest")
        replace_text(self.job, json.dumps(asdict(identity), indent=2))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; the kernel lets go of it with this process.

        Raises:
            SpecError: another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise SpecError(
                    "--output", f"{self.path} is in use by process {file.read() or '?'}"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def in_use(self) -> bool:
        """Whether a process holds it now."""
        try:
            with self._lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Leaves of two JSON values that differ: path, value before, value now."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            found
            for key in keys
            for found in differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if before == now else [(path, before, now)]


def fixed_differences(identity: Identity, job: RLJob) -> list[tuple[str, str, Any, Any]]:
    """What the job would change that it may not: path, why not, value before, value now."""
    found = differences(identity.manifest, job.model_dump(mode="json", by_alias=True))
    return [
        (path, because, before, now)
        for path, before, now in found
        for fixed, because in FIXED.items()
        if path == fixed or path.startswith(f"{fixed}.")
    ]


def replace_text(path: Path, text: str) -> None:
    """Replace a file at once: a reader, or a crash, sees the old text or the new one."""
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
