"""The index of a backup: what the backup is of, and every file in it with size and digest.

It is written last and replaced at once, so a backup is what its index names, and a folder without an index is none.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rljob_cli.backup.place import BackupPlace, Count, StoredFile
from rljob_cli.run_folder.folder import Uid
from rljob_core.errors import BackupDamaged
from rljob_core.ports import Channel
from rljob_core.remote_uri import leaves_folder
from rljob_core.spec import JobName
from rljob_core.spec.base import Namespace
from rljob_runtime.training import checkpoint_base
from rljob_runtime.weights import transport
from rljob_runtime.weights.objects import MANIFEST, TENSORS

INDEX = "index.json"
FOLDERS = frozenset({"streams", "weights", "checkpoints", "trainer"})
"""The folders of a backup."""
UNFINISHED = "unfinished"
"""Names the job by its uid, from before the first file of a backup is written until its index is."""
CHANNELS = frozenset(
    {Channel.LEDGER, Channel.VERSIONS, Channel.METRICS, Channel.TRAJECTORIES, Channel.REWARDS}
)
"""The streams of a backup. Queues and signals are not in it: what is in these would be carried out."""
LARGEST_INDEX = 256 << 20
"""Bytes of an index at most: about 150 for each file."""
_SEGMENT = re.compile(r"\d{6,}-\d{4,}\.jsonl\.gz", re.ASCII)
_LOG = re.compile(r"attempt-\d{1,12}\.jsonl", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{16}")


class _IndexPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StreamSegment(_IndexPart):
    """A file with messages of a stream, in order.

    Attributes:
        path: of the file.
        last: sequence of its last message.
        last_id: id of its last message.
    """

    path: str
    last: Count
    last_id: str


class StreamCopy(_IndexPart):
    """A stream's messages.

    Attributes:
        last_sequence: sequence of the newest message that the stream ever had, which may be deleted.
        limit: bytes that it may hold; 0 without a limit.
        segments: files with its messages, in order.
    """

    last_sequence: Count
    limit: Count
    segments: tuple[StreamSegment, ...]


class Index(_IndexPart):
    """A whole backup.

    Attributes:
        format: of the backup.
        number: of the backup at this place, counted from 1.
        release: of rljob, which made it.
        taken: when its ledger was read: ISO 8601, UTC.
        version: newest version of the policy in its ledger.
        namespace, name, uid: of the job.
        identity: what `job.json` of the run's folder says.
        summary: what `summary.json` says, if the run had ended.
        engines: what `engines.json` says, if the run's folder has it; a job on a cluster has none.
        streams: by channel.
        weights: by key of each version: whether its tensors are here, or its manifest alone.
        files: by path.
    """

    format: Literal[2] = 2
    number: Count
    release: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,64}$")]
    taken: Annotated[str, Field(pattern=r"^[0-9T:.+-]{1,40}$")]
    version: Count
    namespace: Namespace
    name: JobName
    uid: Uid
    identity: dict[str, Any]
    summary: dict[str, Any] | None
    engines: list[Any] | None = None
    streams: dict[Channel, StreamCopy]
    weights: dict[str, bool]
    files: dict[str, StoredFile]

    @field_validator("files")
    @classmethod
    def _are_paths(cls, named: dict[str, StoredFile]) -> dict[str, StoredFile]:
        """Refuse names that are none of a backup's: from them follow the names of what is restored."""
        for path in named:
            if not _is_path(path):
                raise ValueError(f"{path!r} is not the path of a file in a backup")
        return named

    @field_validator("weights")
    @classmethod
    def _are_keys(cls, named: dict[str, bool]) -> dict[str, bool]:
        for key in named:
            if not transport.is_key(key):
                raise ValueError(f"{key!r} is not the key of a version")
        return named

    @model_validator(mode="after")
    def _whole(self) -> Index:
        if self.streams.keys() != CHANNELS:
            raise ValueError(f"its streams are not {', '.join(sorted(CHANNELS))}")
        for channel, stream in self.streams.items():
            for segment in stream.segments:
                if not segment.path.startswith(f"streams/{channel}/"):
                    raise ValueError(f"{segment.path!r} is no file of the stream {channel}")
        for folder in {
            "/".join(path.split("/")[:3]) for path in self.files if path.startswith("checkpoints/")
        }:
            if f"{folder}/{checkpoint_base.INFO}" not in self.files:
                raise ValueError(f"{folder} has no {checkpoint_base.INFO}")
        return self


def _is_path(path: str) -> bool:
    """Whether a backup has a file of this path; the table in `docs/backup.md`."""
    match path.split("/"):
        case ["streams", channel, name]:
            return channel in CHANNELS and _SEGMENT.fullmatch(name) is not None
        case ["weights", key, name]:
            return transport.is_key(key) and name in {MANIFEST, TENSORS}
        case ["checkpoints", key, digest, _, *_]:
            inner = path.split("/", 3)[3]
            of_checkpoint = checkpoint_base.is_key(key) and _DIGEST.fullmatch(digest) is not None
            return of_checkpoint and not leaves_folder(inner)
        case ["trainer", size, name]:
            return _NUMBER.fullmatch(size) is not None and _LOG.fullmatch(name) is not None
        case _:
            return False


def read_index(place: BackupPlace) -> Index | None:
    """Return the index of the backup at a place; None if there is none.

    Raises:
        BackupDamaged: it cannot be read, or a newer release of rljob has written it.
    """
    if INDEX not in place.paths():
        return None
    content = bytearray()
    for chunk in place.read(INDEX):
        content += chunk
        if len(content) > LARGEST_INDEX:
            raise BackupDamaged(
                f"{INDEX} of the backup has more than {LARGEST_INDEX:,} bytes: use another backup"
            )
    try:
        return Index.model_validate_json(bytes(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BackupDamaged(
            f"{INDEX} of the backup cannot be read ({where}: {first['msg']}): use the release of rljob that wrote it, "
            "or another backup"
        ) from error
