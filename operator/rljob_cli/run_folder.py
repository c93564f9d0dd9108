"""The folder of one run: what lies where, which job it belongs to, and who uses it now.

| entry | holds |
|---|---|
| `job.json` | the job's identity: name, uid, model, the whole spec that it was last run with |
| `nats/` | the embedded server's configuration, log and streams (the ledger among them) |
| `weights/`, `checkpoints/`, `checkpoint` | weight versions; saved states; the newest of them |
| `trainer/` | what the trainer fed to backward, in its own words |
| `decisions/` | what each coordinator saw and decided, with `--record` |
| `logs/`, `pods/`, `pids.json`, `status.json` | processes: see `rljob_operator.cluster.local.cluster` |
| `metrics.jsonl`, `summary.json`, `reward.png` | results |
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.spec import Immutable, RLJob, immutable_fields
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_runtime.process.fsync import sync_file, sync_folder

# Compared in other ways: a model's folder may have moved, so its content is; the embedded server has no URL.
_OTHERWISE = {"spec.model.uri", "spec.nats.url"}
# Of no meaning here: all pools are on this machine.
_ELSEWHERE = {"spec.rollout.pools.datacenter"}
FIXED: Mapping[str, Immutable] = {
    path: mark for path, mark in immutable_fields(RLJob) if path not in _OTHERWISE and path not in _ELSEWHERE
}
IMMUTABLE: Mapping[str, Immutable] = {
    path: mark for path, mark in immutable_fields(RLJob) if path not in _ELSEWHERE
}
"""What `rljob patch` may not change."""
"""What a run may not change about the job that it goes on with, and why: what the API server keeps, too.

All else (steps, rates, replicas, mode, …) may be another from one run to the next.
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which job a folder holds.

    Attributes:
        uid: of this job alone; a job of the same name started anew has another.
        model: identity of the initial model (`rljob_runtime.model.identity.model_identity`).
        nats_url: of the server that holds its streams; empty for the embedded one.
        manifest: the RLJob as JSON, as it is now.
        generation: of the manifest: one more with each change, as Kubernetes counts.
        given: the RLJob as `rljob run` was last given it.
        patches: what `rljob patch` changed since, as `--set` takes it.
        origin: folder of the manifest's file: relative paths start there, and reward functions are imported from it.
    """

    name: str
    namespace: str
    uid: str
    model: str
    nats_url: str
    manifest: dict[str, Any]
    generation: int = 1
    given: dict[str, Any] = field(default_factory=dict)
    patches: list[str] = field(default_factory=list)
    origin: str = ""

    def stamp(self, job: RLJob) -> RLJob:
        """The job as Kubernetes would show it: with its uid and generation."""
        metadata = {"uid": self.uid, "generation": self.generation}
        return job.model_copy(update={"metadata": job.metadata.model_copy(update=metadata)})


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
        self.decisions = self.path / "decisions"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.plot = self.path / "reward.png"
        self._lock = self.path / ".lock"

    def defaults(self, nats_url: str) -> ClusterDefaults:
        """What the folder and its server decide for a job."""
        return ClusterDefaults(
            nats_url=nats_url,
            weights_uri=str(self.weights),
            checkpoint_uri=str(self.checkpoints),
            trainer_log_uri=str(self.trainer),
        )

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
        self.write(identity)

    def write(self, identity: Identity) -> None:
        """Write down which job it holds, to survive a crash of the machine."""
        replace_text(self.job, json.dumps(asdict(identity), indent=2), durable=True)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only one to read `job.json`, decide, and write it; does nothing where there is no folder."""
        if not self.path.is_dir():
            yield
            return
        # The folder itself, as a lock file would have to be made for a call that may be refused.
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

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

    def holder(self) -> str:
        """Id of the process that holds it, as far as it says so."""
        return self._lock.read_text(encoding="ascii") if self.in_use() else ""

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


def fixed_differences(
    identity: Identity, job: RLJob, fixed: Mapping[str, Immutable] = FIXED
) -> list[tuple[str, str, Any, Any]]:
    """What the job would change that it may not: path, why not, value before, value now."""
    found = differences(identity.manifest, job.model_dump(mode="json", by_alias=True))
    return [
        (path, mark.because, before, now)
        for path, before, now in found
        for field, mark in fixed.items()
        if (path == field or path.startswith(f"{field}.")) and not mark.allows(before, now)
    ]


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file at once: a reader, or a crash of this process, sees the old text or the new one.

    Args:
        durable: on return it is the new one, also after a crash of the machine.
    """
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        if durable:
            sync_file(aside)
        aside.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
