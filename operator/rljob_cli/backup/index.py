"""The index of a backup: what the backup is of, and every file in it with size and digest.

It is written last and replaced at once, so a backup is what its index names, and a folder without an index is none.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from rljob_cli.backup.place import BackupPlace, StoredFile
from rljob_core.errors import BackupDamaged
from rljob_core.ports import Channel

INDEX = "index.json"
FOLDERS = frozenset({"streams", "weights", "checkpoints", "trainer"})
"""The folders of a backup."""
UNFINISHED = "unfinished"
"""Names the job by its uid, from before the first file of a backup is written until its index is."""
_CHECKPOINT_PARTS = 4  # checkpoints/<key>/<digest>/<file>


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
    last: int
    last_id: str


class StreamCopy(_IndexPart):
    """A stream's messages.

    Attributes:
        last_sequence: sequence of the newest message that the stream ever had, which may be deleted.
        limit: bytes that it may hold; 0 without a limit.
        segments: files with its messages, in order.
    """

    last_sequence: int
    limit: int
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

    format: Literal[1] = 1
    number: int
    release: str
    taken: str
    version: int
    namespace: str
    name: str
    uid: str
    identity: dict[str, Any]
    summary: dict[str, Any] | None
    engines: list[Any] | None = None
    streams: dict[Channel, StreamCopy]
    weights: dict[str, bool]
    files: dict[str, StoredFile]

    @field_validator("files", "weights")
    @classmethod
    def _inside(cls, named: dict[str, Any]) -> dict[str, Any]:
        """Refuse names that lead out of the folder into which they are restored."""
        for path in named:
            parts = path.split("/")
            outside = any(part in {"", ".", ".."} or "\0" in part for part in parts)
            if outside or (parts[0] == "checkpoints" and len(parts) < _CHECKPOINT_PARTS):
                raise ValueError(f"{path!r} is not the path of a file in a backup")
        return named


def read_index(place: BackupPlace) -> Index | None:
    """Return the index of the backup at a place; None if there is none.

    Raises:
        BackupDamaged: it cannot be read, or a newer release of rljob has written it.
    """
    if INDEX not in place.paths():
        return None
    try:
        return Index.model_validate_json(b"".join(place.read(INDEX)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BackupDamaged(
            f"{INDEX} of the backup cannot be read ({where}: {first['msg']}): use the release of rljob that wrote it, "
            "or another backup"
        ) from error
