"""What the death of a machine does to a nats-server's files: the end of a stream, not yet synced, is gone.

On a stopped server's store folder. A stream's folder has its messages in `msgs/<n>.blk`, one record after another (the
removal of a message is a record, too), beside files that sum these up and are written again if they are missing. The
states of its consumers are in `obs/`, and stay as they are.

A record: length of all of it (4 bytes, little-endian; the highest bit says that there are headers), sequence (8; the
two highest bits mark removals and gaps), time (8), length of the subject (2), …, checksum (8).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<IQqH")
_HAS_HEADERS = 1 << 31
_NOT_A_MESSAGE = (1 << 63) | (1 << 62)


@dataclass(frozen=True, slots=True)
class Record:
    """Where a record begins in its file, and the sequence of the message that it holds; None for another record."""

    offset: int
    sequence: int | None


def stream_folder(store: Path, name: str) -> Path:
    """The files of a stream.

    Args:
        store: the server's folder, or any above it.
        name: how the stream's name ends: a channel's name, for the one job of the server.
    """
    (found,) = (path for path in store.rglob("streams/*") if path.name.endswith(name))
    return found


def _blocks(folder: Path) -> list[Path]:
    return sorted((folder / "msgs").glob("*.blk"), key=lambda path: int(path.stem))


def records(block: Path) -> Iterator[Record]:
    """What a file of messages holds."""
    data = block.read_bytes()
    offset = 0
    while offset < len(data):
        length, sequence, _, _ = _HEADER.unpack_from(data, offset)
        yield Record(offset, None if sequence & _NOT_A_MESSAGE else sequence)
        offset += length & ~_HAS_HEADERS


def _truncate(folder: Path, block: Path, size: int) -> None:
    """End a stream with the first `size` bytes of a file, and forget its sums."""
    for later in _blocks(folder):
        if int(later.stem) > int(block.stem):
            later.unlink()
    with block.open("r+b") as file:
        file.truncate(size)
    for sums in (folder / "msgs").iterdir():
        if sums.suffix != ".blk":
            sums.unlink()


def _empty(folder: Path) -> None:
    for block in _blocks(folder)[:1]:
        _truncate(folder, block, 0)


def cut_messages(folder: Path, count: int) -> None:
    """Lose the newest `count` messages in the files, removed ones among them, and all that was done since.

    Where there are fewer (an emptied file is begun again, with nothing but the sequence to go on from), all is lost,
    and sequences begin at 1 again.
    """
    stored = [
        (block, r.offset) for block in _blocks(folder) for r in records(block) if r.sequence is not None
    ]
    if 0 < count <= len(stored):
        _truncate(folder, *stored[-count])
    elif count:
        _empty(folder)


def cut_removals(folder: Path) -> int:
    """Lose the removals after the newest message; how many they were."""
    everything = [(block, record) for block in _blocks(folder) for record in records(block)]
    lost = 0
    while everything and everything[-1][1].sequence is None:
        block, last = everything.pop()
        _truncate(folder, block, last.offset)
        lost += 1
    return lost


def cut_bytes(folder: Path, count: int) -> None:
    """Lose the last `count` bytes; a record may be torn."""
    for block in reversed(_blocks(folder)):
        size = block.stat().st_size
        if count < size:
            _truncate(folder, block, size - count)
            return
        count -= size
    _empty(folder)


def damage_descriptions(folder: Path, *, stream: bool, queues: bool) -> None:
    """Empty the files that describe a stream, or its consumers: they were begun, but never synced.

    Their states stay. A server that starts passes over whatever has no valid description.
    """
    if stream:
        (folder / "meta.sum").write_bytes(b"")
    if queues:
        for described in (folder / "obs").glob("*/meta.inf"):
            described.write_bytes(b"")


def damage_states(folder: Path) -> None:
    """Fill the files of the states of a stream's consumers with zeros: they were written, but never synced."""
    for state in (folder / "obs").glob("*/o.dat"):
        state.write_bytes(bytes(state.stat().st_size))
