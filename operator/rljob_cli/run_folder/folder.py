"""The output folder of a run: its layout, the job that it belongs to, and the lock of the process that uses it.

| entry | holds |
|---|---|
| `job.json` | the job's identity: name, uid, model, the whole spec that it was last run with |
| `config.json` | in the mirror of a job on a cluster (`rljob_cli.kubectl.mirror`): the configuration of its workers |
| `nats/` | the embedded server's configuration and streams (the ledger among them); `sites/`: those of sites |
| `weights/`, `checkpoints/`, `checkpoint` | weight versions; saved states; the newest of them |
| `trainer/` | the trainer's log of the trajectories it trained on |
| `samples/` | answers with their tokens and scores: `rljob_runtime.samples` |
| `trackers/` | files of experiment trackers that name no other folder, by the tracker's name |
| `decisions/` | the observations and decisions of each coordinator, with `--record` |
| `logs/`, `pods/`, `pids.json`, `status.json` | processes: see `rljob_operator.cluster.local.cluster` |
| `metrics.jsonl`, `summary.json`, `reward.png` | results |
| `events.log` | what happened, with times: all that `rljob run` said of its processes and of the job |
| `prometheus/` | with `--metrics`: where each process serves its metrics, as Prometheus reads it |
| `engines.json` | what engines have measured of themselves: their newest heartbeats, for `rljob simulate --from` |
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from rljob_cli.manifest.differences import value_in
from rljob_core import worker_protocol
from rljob_core.advice import dotted, location
from rljob_core.errors import SpecError
from rljob_core.remote_uri import job_with_paths
from rljob_core.spec import JobName, RLJob, SiteLinkSpec
from rljob_core.spec.base import Namespace
from rljob_operator.children import storage
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_runtime.process.fsync import create_folder
from rljob_runtime.storage.plain_files import read_plain

FORMAT: Literal[3] = 3
"""Of a run's folder; `job.json` says it. Raised with any change that another release would misread."""
LARGEST_FILE = 64 << 20
"""Bytes of a JSON file in a run's folder at most."""

Uid = Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]
"""UID of a job: part of the names of its streams."""
_REVISION = re.compile("[A-Za-z0-9]{1,64}")


def _downloads(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    for one in found.values():
        if one.keys() != {"uri", "revision", "path"}:
            raise ValueError("a download has uri, revision and path")
        if _REVISION.fullmatch(one["revision"]) is None:  # it is a folder of the cache
            raise ValueError(f"{one['revision'][:100]!r} is no revision of a download")
    return found


def _links(found: dict[str, Any]) -> dict[str, Any]:
    for link in found.values():
        SiteLinkSpec.model_validate(link, by_alias=True)
    return found


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
        links: the link of each Site that the manifest's file describes, as in its spec.
        data: `rows`, `used` and `digest` of the file of training data at the last start; empty if there is no file
            (`rljob_cli.job_checks.training_rows`).
        viewer: path of a viewer's NATS credentials, if the folder mirrors a job on a cluster (`rljob_cli.kubectl`).
        mirrors: whether it does: its storage is elsewhere.
        downloads: `revision` and `path` of what was downloaded, by the URI in the manifest: the revision stays the one
            with which the job began; no path after a restore, until a run has downloaded it again.
        format: of the folder.
    """

    name: JobName
    namespace: Namespace
    uid: Uid
    model: str
    nats_url: str
    manifest: dict[str, Any]
    generation: int = 1
    given: dict[str, Any] = field(default_factory=dict)
    patches: list[str] = field(default_factory=list)
    origin: str = ""
    links: Annotated[dict[str, Any], AfterValidator(_links)] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    viewer: str = ""
    mirrors: bool = False
    downloads: Annotated[dict[str, dict[str, str]], AfterValidator(_downloads)] = field(default_factory=dict)
    format: Literal[3] = FORMAT

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    @classmethod
    def of(cls, content: Any) -> Identity:
        """What `job.json` says.

        Args:
            content: of the file, parsed.

        Raises:
            ValueError: it is no such content; the message names its first fault.
        """
        try:
            return _IDENTITY.validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = f"{dotted(location(first))}: " if first["loc"] else ""
            raise ValueError(f"{place}{first['msg']}") from error

    @property
    def site_links(self) -> dict[str, SiteLinkSpec]:
        """`links`, read."""
        return {site: SiteLinkSpec.model_validate(link, by_alias=True) for site, link in self.links.items()}

    def stamp(self, job: RLJob) -> RLJob:
        """The job with its uid and generation, as Kubernetes would store it, and with paths (`with_downloads`)."""
        metadata = {"uid": self.uid, "generation": self.generation}
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update=metadata)})
        return self.with_downloads(job)

    def with_downloads(self, job: RLJob) -> RLJob:
        """The job with paths in place of the URIs of what was downloaded to this machine."""
        return job_with_paths(job, {name: one for name, one in self.downloads.items() if one["path"]})


_IDENTITY = TypeAdapter(Identity)


class RunFolder:
    """The paths in a run's folder, and the locks on it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.job = self.path / "job.json"
        self.workers_config = self.path / "config.json"
        self.nats = self.path / "nats"
        self.weights = self.path / "weights"
        self.checkpoints = self.path / "checkpoints"
        self.checkpoint = self.path / "checkpoint"
        self.trainer = self.path / "trainer"
        self.samples = self.path / "samples"
        self.trackers = self.path / "trackers"
        self.decisions = self.path / "decisions"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events.log"
        self.engines = self.path / "engines.json"
        self.targets = self.path / "prometheus"
        self.summary = self.path / "summary.json"
        self.plot = self.path / "reward.png"
        self._lock = self.path / ".lock"

    def defaults(
        self,
        nats_url: str,
        site_servers: Mapping[str, str] | None = None,
        links: Mapping[str, SiteLinkSpec] | None = None,
    ) -> ClusterDefaults:
        """The defaults for a job in this folder.

        Args:
            nats_url: address of its NATS server.
            site_servers: addresses of those of sites, by site.
            links: the links to these, by site.
        """
        return ClusterDefaults(
            nats_url=nats_url,
            site_servers=site_servers or {},
            links=links or {},
            nats_replicas=1,  # of the embedded server
            weights_uri=str(self.weights),
            checkpoint_uri=str(self.checkpoints),
            trainer_log_uri=str(self.trainer),
            samples_uri=str(self.samples),
            trackers_folder=str(self.trackers),
        )

    def trainer_log_uri(self, identity: Identity) -> str:
        """Where the trainer's log of a run is: in the folder, or beside checkpoints in an object store."""
        return storage.beside(self.checkpoints_uri(identity), storage.TRAINER_LOG, str(self.trainer))

    def samples_uri(self, identity: Identity) -> str:
        """Where the samples of a run are: in the folder, or beside checkpoints in an object store."""
        return storage.beside(self.checkpoints_uri(identity), storage.SAMPLES, str(self.samples))

    def checkpoints_uri(self, identity: Identity) -> str:
        """Where the checkpoints of a run are."""
        found = value_in(identity.manifest, "spec.trainer.checkpoint.uri")  # it may be damaged
        return (found if isinstance(found, str) and found else str(self.checkpoints)).rstrip("/")

    @property
    def metrics_variables(self) -> dict[str, str]:
        """What has roles serve their metrics on free ports of the loopback interface, and say where."""
        return {
            worker_protocol.METRICS_ADDRESS: "127.0.0.1:0",
            worker_protocol.METRICS_TARGETS: str(self.targets),
        }

    def identity(self) -> Identity | None:
        """The job that the folder belongs to; None if it belongs to none yet.

        Raises:
            SpecError: `job.json` cannot be read, or is of another format.
        """
        try:
            content = _json_in(self.job)
            if isinstance(content, dict) and (written := content.get("format")) != FORMAT:
                raise SpecError(
                    str(self.job),
                    f"is of format {written}, and this release of rljob reads {FORMAT}: use the release that wrote it, "
                    "or name another folder",
                )
            return Identity.of(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(
                str(self.job), f"cannot be read ({error}): put a backup of it there, or name another folder"
            ) from error

    def required_identity(self) -> Identity:
        """The job that the folder belongs to.

        Raises:
            SpecError: as of `identity`, or it belongs to none.
        """
        identity = self.identity()
        if identity is None:
            raise SpecError(str(self.path), "is not an output folder of rljob run: it has no job.json")
        return identity

    def earlier_summary(self) -> dict[str, Any]:
        """The `summary.json` of an earlier run of this job; empty if there is none or it is damaged."""
        try:
            found = _json_in(self.summary)
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def earlier_engines(self) -> list[Any] | None:
        """The heartbeats in `engines.json`; None if there are none or they are damaged: a run writes them again."""
        try:
            found = _json_in(self.engines)
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found if isinstance(found, list) else None

    def has_begun(self) -> bool:
        """Whether a run has left anything in the folder besides the job's identity and its streams."""
        folders = (self.weights, self.trainer)
        return self.metrics.exists() or any(place.is_dir() and any(place.iterdir()) for place in folders)

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
        self.check_plain()
        with self._opened_lock(os.O_RDWR | os.O_CREAT) as file:
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
        if not self.in_use():
            return ""
        with self._opened_lock(os.O_RDONLY) as file:
            return file.read()

    def in_use(self) -> bool:
        """Whether a process holds the lock now."""
        try:
            with self._opened_lock(os.O_RDONLY) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _opened_lock(self, flags: int) -> TextIOWrapper:
        """The lock's file, which is no link and no FIFO."""
        try:
            descriptor = os.open(self._lock, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
                raise
            raise _not_ours(self._lock) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _not_ours(self._lock)
        return os.fdopen(descriptor, "r" if flags == os.O_RDONLY else "r+", encoding="ascii")

    def check_plain(self) -> None:
        """Check that what is read and written here, and by the server, are files of this folder.

        A folder may come from anybody: a link would have a file elsewhere overwritten, a FIFO would never be read to
        its end. Weights, checkpoints and samples may be links to other disks: who reads them checks them.

        Raises:
            SpecError: something is a link, a FIFO or a device.
        """
        left = [
            *(
                self._lock,
                self.job,
                self.workers_config,
                self.engines,
                self.metrics,
                self.events,
                self.summary,
            ),
            *(self.nats, self.trainer, self.decisions, self.targets, self.path / "logs"),
        ]
        while left:
            path = left.pop()
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if stat.S_ISDIR(mode):
                    left += path.iterdir()
                elif not stat.S_ISREG(mode):
                    raise _not_ours(path)


def _not_ours(path: Path) -> SpecError:
    return SpecError(
        str(path), "is a link, a FIFO or a device, as no run leaves: remove it, or put the file itself there"
    )


def _json_in(file: Path) -> Any:
    return json.loads(read_plain(file, limit=LARGEST_FILE))
