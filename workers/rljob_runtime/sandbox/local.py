"""`LocalSandbox`: programs in namespaces of their own on this machine, by bubblewrap.

What contains a program, from outside to inside: a user of its own where this process is root (so that the kernel counts
its processes alone), resource limits, namespaces of users, processes, network, hosts' names and IPC, a root file system
of which nothing can be written but `/tmp`, no capabilities, and a filter of system calls. Its end, and that of all that
it has started, is the end of its first process, which the kernel kills with bubblewrap.
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import psutil

from rljob_core.ports.sandbox import (
    SandboxEnd,
    SandboxLimits,
    SandboxResult,
    SandboxUnavailable,
)
from rljob_runtime.sandbox.syscalls import refusals

_PIECE = 1 << 16


@dataclass(slots=True)
class Collected:
    """What was written so far, and how much may be.

    Attributes:
        most: bytes of both together that are kept.
        full: whether there was more.
    """

    most: int
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    full: bool = False

    def add(self, to: bytearray, piece: bytes) -> None:
        """Keep what there is room for."""
        room = self.most - len(self.output) - len(self.errors)
        to += piece[:room]
        self.full = self.full or len(piece) > room


def collect(process: subprocess.Popen[bytes], collected: Collected, *, every: float) -> Iterator[None]:
    """Read until the process has ended; yields every few moments, and between pieces.

    Args:
        process: with pipes for standard output and standard error.
        collected: what is read.
        every: seconds between two yields, at most.
    """
    with selectors.DefaultSelector() as selector:
        for pipe, to in ((process.stdout, collected.output), (process.stderr, collected.errors)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, to)
        while selector.get_map():
            for key, _ in selector.select(every):
                piece = key.fileobj.read1(_PIECE)  # type: ignore[union-attr]
                if piece:
                    collected.add(key.data, piece)
                else:
                    selector.unregister(key.fileobj)
            yield
    while process.poll() is None:  # it has closed both, and lives
        try:
            process.wait(every)
        except subprocess.TimeoutExpired:
            yield


WORKING_DIRECTORY = "/tmp/work"  # noqa: S108 the sandbox's own
PATH = "/usr/local/bin:/usr/bin:/bin"
_TOOLS = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/sbin", "/etc/alternatives", "/etc/ld.so.cache")
_OPEN_FILES = 128
_LOOK_SECONDS = 0.05
_OWN_PROCESSES = 2
"""bubblewrap's own inside the limit: the one outside, and the first process inside."""
_FIRST_USER, _USERS = 1_000_000_000, 1_000_000_000
"""No machine gives these ids to people; the chance that two sandboxes share one is that of a collision in a thousand
million, and costs each no more than the other's processes."""


class LocalSandbox:
    """Programs in namespaces of their own on this machine.

    Raises:
        SandboxUnavailable: a program that it needs is not installed, or namespaces are forbidden here: as in a pod of
            the Pod Security Standard Restricted, where a pod for each sandbox takes its place.
    """

    def __init__(self) -> None:
        for tool, package in _TOOLS.items():
            if shutil.which(tool) is None:
                raise SandboxUnavailable(f"{tool} is not installed: install Debian's package {package}")
        tried = self.run(["true"], limits=SandboxLimits(seconds=30.0))
        if not tried.succeeded:
            said = tried.errors.decode(errors="replace").strip() or f"exit code {tried.exit_code}"
            raise SandboxUnavailable(f"no namespaces can be made here: {said}")

    def run(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
    ) -> SandboxResult:
        """See `Sandbox.run`."""
        limits, files = limits or SandboxLimits(), dict(files or {})
        _require_inside(files, limits)
        with ExitStack() as opened:
            given = {name: opened.enter_context(_in_memory(content)) for name, content in files.items()}
            seccomp = opened.enter_context(_in_memory(refusals()))
            read = opened.enter_context(_in_memory(stdin))
            arguments = [*_limited(limits), *self._contained(limits, given, seccomp), "--", *command]
            began = time.monotonic()
            process = subprocess.Popen(
                arguments,
                stdin=read,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[seccomp, *given.values()],
                cwd="/",
                env={"PATH": PATH},
                start_new_session=True,
            )
            with process:
                try:
                    end, collected = _watch(process, limits, began)
                finally:
                    process.kill()  # and with it all that it has started
            return SandboxResult(
                end,
                _exit_code(process.returncode),
                bytes(collected.output),
                bytes(collected.errors),
                time.monotonic() - began,
            )

    def _contained(self, limits: SandboxLimits, files: Mapping[str, int], seccomp: int) -> Iterator[str]:
        """bubblewrap's arguments."""
        yield from ("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent")
        yield from ("--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--seccomp", str(seccomp))
        yield from ("--uid", "65534", "--gid", "65534", "--clearenv")
        for name, value in {"PATH": PATH, "HOME": WORKING_DIRECTORY, "LANG": "C.UTF-8"}.items():
            yield from ("--setenv", name, value)
        for folder in _SYSTEM:
            place = Path(folder)
            if place.is_symlink():
                yield from ("--symlink", str(place.readlink()), folder)
            elif place.exists():
                yield from ("--ro-bind", folder, folder)
        yield from ("--proc", "/proc", "--dev", "/dev", "--size", "65536", "--tmpfs", "/dev/shm")  # noqa: S108
        yield from ("--remount-ro", "/dev", "--size", str(limits.disk_bytes), "--tmpfs", "/tmp")  # noqa: S108
        yield from ("--dir", WORKING_DIRECTORY)
        for name, file in files.items():
            yield from ("--perms", "0644", "--file", str(file), f"{WORKING_DIRECTORY}/{name}")
        yield from ("--remount-ro", "/", "--chdir", WORKING_DIRECTORY)


def _require_inside(files: Mapping[str, bytes], limits: SandboxLimits) -> None:
    for name in files:
        parts = PurePosixPath(name)
        if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
            raise ValueError(f"{name!r} leads out of the sandbox's working directory: give a relative path")
    if (size := sum(map(len, files.values()))) > limits.disk_bytes:
        raise ValueError(f"the files have {size:,} bytes, and the sandbox's disk {limits.disk_bytes:,}")


def _limited(limits: SandboxLimits) -> Iterator[str]:
    """A program that takes the limits, and runs its arguments."""
    most = limits.processes + _OWN_PROCESSES
    if os.geteuid() == 0:
        user = str(_FIRST_USER + secrets.randbelow(_USERS))
        yield from ("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs")
    else:  # the kernel counts all processes of this user
        most += _threads_of(os.getuid())
        yield from ("setpriv", "--no-new-privs")
    seconds = int(limits.seconds) + 1
    bounds = {
        "nproc": most,
        "data": limits.memory_bytes,
        "fsize": limits.disk_bytes,
        "cpu": seconds,
        "nofile": _OPEN_FILES,
        "core": 0,
        "memlock": 0,
        "msgqueue": 0,
    }
    yield "prlimit"
    for name, bound in bounds.items():
        _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        yield f"--{name}={bound if hard == resource.RLIM_INFINITY else min(bound, hard)}"


def _threads_of(user: int) -> int:
    found = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        if process.info["uids"] is not None and process.info["uids"].real == user:
            found += process.info["num_threads"] or 1
    return found


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """A file of this content, at its beginning, as bubblewrap and the program read it."""
    file = os.memfd_create("sandbox")
    try:
        with os.fdopen(os.dup(file), "wb") as written:
            written.write(content)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _watch(
    process: subprocess.Popen[bytes], limits: SandboxLimits, began: float
) -> tuple[SandboxEnd, Collected]:
    """Collect what the program writes, until it ends or has used what it may."""
    collected = Collected(limits.output_bytes)
    for _ in collect(process, collected, every=_LOOK_SECONDS):
        if collected.full:
            return SandboxEnd.TOO_MUCH_OUTPUT, collected
        if time.monotonic() - began > limits.seconds:
            return SandboxEnd.OUT_OF_TIME, collected
        if _memory(process.pid) > limits.memory_bytes:
            return SandboxEnd.OUT_OF_MEMORY, collected
    return SandboxEnd.ENDED, collected


def _memory(pid: int) -> int:
    """Bytes of memory of all that a process has started; of what several share, a part each."""
    found = 0
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            try:
                found += process.memory_full_info().pss
            except psutil.AccessDenied:  # it is changing its user
                found += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    return found


def _exit_code(status: int) -> int:
    return status if status >= 0 else 128 - status
