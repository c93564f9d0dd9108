"""Reads the files that `wandb` writes offline, as far as it takes to know which steps they have.

The format is LevelDB's log, https://github.com/google/leveldb/blob/main/doc/log_format.md, behind a header of 7 bytes:
blocks of 32 KiB with records of wandb's protocol buffers. The end of a file may be missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC, _HEADER_BYTES = b":W&B", 7
_BLOCK = 32 << 10
_RECORD = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


def histories(folder: Path, run: str) -> Iterator[dict[str, str]]:
    """The logged values of a run, as JSON texts by name, of all of its files below a folder, the oldest file first.

    Args:
        folder: the one in which `wandb` has its folder `wandb`.
        run: id of the run.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted((folder / "wandb").glob(f"offline-run-*-{run}/run-{run}.wandb")):
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                found = record.history
                yield {
                    "_step": str(found.step.num),
                    **{item.key or "/".join(item.nested_key): item.value_json for item in found.item},
                }


def _records(data: bytes) -> Iterator[bytes]:
    """The whole records of a file's content, up to the first that is cut."""
    position, parts = _HEADER_BYTES, b""
    if not data.startswith(_MAGIC):
        return
    while position + _RECORD.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _RECORD.size:  # a block's end that is too short for a record is filled with zeros
            position += left
            continue
        _checksum, size, kind = _RECORD.unpack_from(data, position)
        position += _RECORD.size
        part = data[position : position + size]
        if kind == 0 or len(part) < size:
            return
        position += size
        parts = part if kind in {_FULL, _FIRST} else parts + part
        if kind in {_FULL, _LAST}:
            yield parts
