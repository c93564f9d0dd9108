"""Decides which groups are kept, when a file is full, and which files are deleted. Without I/O and without a clock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from rljob_core.spec import RLJobSpec
from rljob_core.stable_hash import stable_hash
from rljob_core.trajectory import is_evaluation

STEP_TOKENS = 1 << 20
"""About how many tokens of one step are kept if the job does not say which share."""

SampleKind = Literal["training", "evaluation"]

#: Bytes of rows in memory with which a file is full, and the least for a job that keeps little.
_FULL, _LEAST_FULL = 8 << 20, 64 << 10
#: Bytes of a file system that samples leave free, and the part of a small one.
_RESERVE, _RESERVED_PART = 1 << 30, 20
#: Files into which what is kept is divided, at least, so that deleting the oldest one loses only a part.
_PARTS = 8
#: Seconds between two writes of a file that grows. A write takes a hundredth of the time at most.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _PAUSES = 2.0, 30.0, 100.0
_NAME = re.compile(r"(training|evaluation)-(\d{13})-([A-Za-z0-9._-]+)-(\d{4,})\.parquet")


def share_of(spec: RLJobSpec) -> float:
    """The share of the training groups that a job keeps, between 0 and 1."""
    if spec.samples.share is not None:
        return spec.samples.share
    data = spec.data
    return min(
        1.0, STEP_TOKENS / (data.prompts_per_step * data.group_size * spec.rollout.sampling.max_tokens)
    )


def keeps(group: str, share: float) -> bool:
    """Whether a group is kept; all workers decide the same, as each may score other answers of the group."""
    return is_evaluation(group) or stable_hash(f"sample of {group}") < share * 2**32


@dataclass(frozen=True, slots=True, order=True)
class SampleFile:
    """A file of samples.

    Attributes:
        created: when its first answer was scored, in milliseconds since 1970.
        kind: what its answers are of.
        writer: who writes it: no two processes have the same name.
        number: counts the writer's files.
        size: bytes; 0 while unknown.
    """

    created: int
    kind: SampleKind
    writer: str
    number: int
    size: int = 0

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.kind}-{self.created:013d}-{self.writer}-{self.number:04d}.parquet"

    @classmethod
    def of(cls, name: str, size: int) -> Self | None:
        """The file of that name; None for a file of something else."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        kind: SampleKind = "training" if found[1] == "training" else "evaluation"
        return cls(int(found[2]), kind, found[3], int(found[4]), size)


def outdated(files: Iterable[SampleFile], keep_bytes: int) -> list[SampleFile]:
    """The files to delete so that the rest has at most `keep_bytes`: the oldest of training, then of evaluations.

    The newest file of each kind stays, whatever its size.
    """
    found = sorted(files)
    excess = sum(file.size for file in found) - keep_bytes
    deleted = list[SampleFile]()
    for kind in ("training", "evaluation"):
        for file in [file for file in found if file.kind == kind][:-1]:
            if excess <= 0:
                return deleted
            deleted.append(file)
            excess -= file.size
    return deleted


def has_room(size: int, *, free: int, total: int) -> bool:
    """Whether a file of that size leaves, on its file system, the room that checkpoints may need.

    Args:
        size: bytes of the file.
        free: bytes that are free.
        total: bytes of the file system; 0 if it does not say.
    """
    return not total or free - size >= reserve_of(total)


def reserve_of(total: int) -> int:
    """Bytes of a file system of that size which samples leave free."""
    return min(_RESERVE, total // _RESERVED_PART)


def is_full(rows_bytes: int, keep_bytes: int) -> bool:
    """Whether a file with rows of that many bytes, as they are in memory, takes no more."""
    return rows_bytes >= max(_LEAST_FULL, min(_FULL, keep_bytes // _PARTS))


def pause_after(seconds: float) -> float:
    """Seconds until files are written again, after a write that took so long."""
    return min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _PAUSES * seconds))
