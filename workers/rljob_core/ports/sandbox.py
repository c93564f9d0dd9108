"""`Sandbox`: runs a program that nobody trusts, such as code that a model wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class SandboxEnd(StrEnum):
    """Why a program in a sandbox has ended."""

    ENDED = "Ended"
    """By itself; its exit code says how."""
    OUT_OF_TIME = "OutOfTime"
    OUT_OF_MEMORY = "OutOfMemory"
    TOO_MUCH_OUTPUT = "TooMuchOutput"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What a program and all that it starts may use together.

    Attributes:
        seconds: of wall-clock time.
        memory_bytes: of memory, without the files that it writes.
        disk_bytes: of files, which are gone at its end.
        processes: at a time, threads included.
        output_bytes: of standard output and standard error together.
    """

    seconds: float = 10.0
    memory_bytes: int = 256 << 20
    disk_bytes: int = 64 << 20
    processes: int = 32
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a program did.

    Attributes:
        end: why it has ended.
        exit_code: its own, or 128 plus the number of the signal that ended it.
        output: what it wrote to standard output, up to the limit.
        errors: the same of standard error.
        seconds: that it ran for.
    """

    end: SandboxEnd
    exit_code: int
    output: bytes
    errors: bytes
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.end is SandboxEnd.ENDED and self.exit_code == 0


class Sandbox(Protocol):
    """Programs run in it one by one or side by side, and see nothing of each other or of the machine."""

    def run(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
    ) -> SandboxResult:
        """Run a program to its end, or to the end of what it may use; then nothing of it is left.

        Args:
            command: program and arguments; the program is found in the sandbox's `PATH`.
            files: that are in its working directory when it begins, by their relative paths.
            stdin: what it reads from standard input.
            limits: what it may use.

        Raises:
            ValueError: a file's path leads out of the working directory, or files are larger than the disk.
            SandboxUnavailable: there can be no sandbox here; the message says what is missing.
        """


class SandboxUnavailable(Exception):
    """This machine, or this pod, can run no sandbox."""
