"""The output folder of a run: its layout, the job that it belongs to, and the lock of the process that uses it.

| entry | holds |
|---|---|
| `job.json` | the job's identity: name, uid, model, the whole spec that it was last run with |
| `nats/` | the embedded server's configuration, log and streams (the ledger among them) |
| `weights/`, `checkpoints/`, `checkpoint` | weight versions; saved states; the newest of them |
| `trainer/` | the trainer's log of the trajectories it trained on |
| `decisions/` | the observations and decisions of each coordinator, with `--record` |
| `logs/`, `pods/`, `pids.json`, `status.json` | processes: see `rljob_operator.cluster.local.cluster` |
| `metrics.jsonl`, `summary.json`, `reward.png` | results |
| `engines.json` | what engines have measured of themselves: their newest heartbeats, for `rljob simulate --from` |
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_runtime.process.fsync import create_folder


@dataclass(frozen=True, slots=True)
class Identity:
    """The job that a folder belongs to.

    Attributes:
        uid: unique id of the job; a new job of the same name has another.
        model: identity of the initial model (`rljob_runtime.model.identity.model_identity`).
        nats_url: address of the server that holds the job's streams; empty for the embedded server.
        manifest: the RLJob as JSON, with all changes.
        generation: number of the manifest, one higher with each change, as in Kubernetes.
        given: the RLJob as it was last passed to `rljob run`.
        patches: the changes by `rljob patch` since then, in the form of `--set`.
        origin: folder of the manifest's file: relative paths start there, and reward functions are imported from it.
        data: `rows` and `digest` of the file of training data at the last start; empty if there is no file.
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
    data: dict[str, Any] = field(default_factory=dict)

    def stamp(self, job: RLJob) -> RLJob:
        """The job with its uid and generation, as Kubernetes would store it."""
        metadata = {"uid": self.uid, "generation": self.generation}
        return job.model_copy(update={"metadata": job.metadata.model_copy(update=metadata)})


class RunFolder:
    """The paths in a run's folder, and the locks on it."""

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
        self.engines = self.path / "engines.json"
        self.summary = self.path / "summary.json"
        self.plot = self.path / "reward.png"
        self._lock = self.path / ".lock"

    def defaults(self, nats_url: str) -> ClusterDefaults:
        """The defaults for a job in this folder whose NATS server has that address."""
        return ClusterDefaults(
            nats_url=nats_url,
            nats_replicas=1,  # of the embedded server
            weights_uri=str(self.weights),
            checkpoint_uri=str(self.checkpoints),
            trainer_log_uri=str(self.trainer),
        )

    def identity(self) -> Identity | None:
        """The job that the folder belongs to; None if it belongs to none yet.

        Raises:
            SpecError: `job.json` cannot be read.
        """
        try:
            return Identity(**json.loads(self.job.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise SpecError(str(self.job), f"cannot be read ({error}): choose another --output") from error

    def earlier_summary(self) -> dict[str, Any]:
        """The `summary.json` of an earlier run of this job; empty if there is none or it is damaged."""
        try:
            found = json.loads(self.summary.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def earlier_engines(self) -> list[Any] | None:
        """The heartbeats in `engines.json`; None if there are none or they are damaged: a run writes them again."""
        try:
            found = json.loads(self.engines.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, list) else None

    def claim(self, identity: Identity) -> None:
        """Create the folder and write the identity of its job."""
        create_folder(self.path)
        self.write(identity)  # first: if a later write fails, the folder is a run to resume
        for folder in (self.nats, self.weights, self.checkpoints, self.trainer):
            folder.mkdir(exist_ok=True)
        if not self.checkpoint.is_symlink():
            self.checkpoint.symlink_to(Path(self.checkpoints.name) / "latest")

    def write(self, identity: Identity) -> None:
        """Write the identity of its job durably: it survives a crash of the machine."""
        replace_text(self.job, json.dumps(asdict(identity), indent=2), durable=True)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock under which `job.json` is read and then written; without a folder there is nothing to lock."""
        if not self.path.is_dir():
            yield
            return
        # The lock is on the folder itself: a call that is refused must not create a lock file.
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's exclusive lock; the kernel releases it when this process ends.

        Raises:
            SpecError: another process holds the lock.
        """
        create_folder(self.path)
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
        """Id of the process that holds the lock; empty if none does."""
        return self._lock.read_text(encoding="ascii") if self.in_use() else ""

    def in_use(self) -> bool:
        """Whether a process holds the lock now."""
        try:
            with self._lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False
