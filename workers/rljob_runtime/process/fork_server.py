"""Forks processes from one that has imported what they need, which takes seconds with torch; `rljob run` asks for them.

Requests and answers are lines of JSON on a socket, which is this process's standard input:

    {"id": 7, "role": "reward", "environment": {"PATH": "…", …}, "log": "…/logs/chain-sum-reward-0.log"}
    {"id": 7, "pid": 4711}      it runs, and leads a session of its own
    {"id": 7, "code": -9}       it has ended; -n for signal n, as in `subprocess`
    {"id": 7, "pid": 0}         no process was made: the modules that this role needs must not be loaded before a fork

Three more have no answer:

    {"path": ["/home/me/job"]}   has modules, as a folder of RLJOB_MODULES
    {"modules": ["torch", …]}   will be needed: they are imported while nothing else is to be done
    {"log": "…/fork-server.log"}   where this process writes from now on, and what it has written until then

It imports one module at a time, and looks for requests after each. It has one thread, so the processes that it forks
end with it (`lifeline`). It ends when the other end of the socket is closed.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rljob_runtime.process.import_path import find_modules_in

Modules = Callable[[str, Mapping[str, str]], Sequence[str]]
"""The modules that a role with these environment variables is going to import."""

_DEVICES = "/dev/nvidia"
_FDS = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """One process to be made.

    Attributes:
        id: chosen by the one who asks, for the answers.
        role: what the process is to run.
        environment: all of its environment variables.
        log: file to which its standard output and standard error are appended.
    """

    id: int
    role: str
    environment: Mapping[str, str]
    log: str


class ForkServer:
    """Answers the requests on a socket.

    Args:
        requests: the socket, connected.
        modules: names what is imported before a process is forked for a role.
    """

    def __init__(self, requests: socket.socket, modules: Modules) -> None:
        self._requests = requests
        self._modules = modules
        self._received = b""
        self._waiting: list[ForkRequest] = []
        self._ahead: list[str] = []
        self._tried: set[str] = set()
        #: By the descriptor that says when it ends: the process, and its request.
        self._ends: dict[int, tuple[int, int]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def serve(self) -> ForkRequest | None:
        """Serve until the socket is closed, and return None; in every forked process, return its request."""
        while True:
            for key, _ in self._selector.select(0 if self._waiting or self._ahead else None):
                if key.fd in self._ends:
                    self._report_end(key.fd)
                elif not self._receive():
                    return None
            if self._waiting:
                index, missing = self._next()
                if missing:
                    self._import(missing[0])
                    continue
                request = self._waiting.pop(index)
                if _has_opened_gpu():
                    self._answer(id=request.id, pid=0)
                elif self._fork(request):
                    return request
            elif self._ahead:
                self._import(self._ahead.pop(0))

    def _receive(self) -> bool:
        with suppress(ConnectionError):
            if data := self._requests.recv(1 << 16):
                *lines, self._received = (self._received + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
                return True
        return False

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._waiting.append(ForkRequest(**message))
        elif "path" in message:
            find_modules_in(message["path"])
        elif "modules" in message:
            self._ahead += message["modules"]
        else:
            _write_to(message["log"])

    def _next(self) -> tuple[int, Sequence[str]]:
        """The request for which least is to be imported: a role that needs no torch does not wait for it."""
        needed = []
        for request in self._waiting:
            modules = self._modules(request.role, request.environment)
            needed.append([name for name in modules if name not in sys.modules and name not in self._tried])
        index = min(range(len(needed)), key=lambda i: len(needed[i]))
        return index, needed[index]

    def _import(self, module: str) -> None:
        self._tried.add(module)
        with suppress(Exception):  # the role imports it again, and reports the error
            import_module(module)

    def _fork(self, request: ForkRequest) -> bool:
        """Fork; True in the new process, which is ready to run the role."""
        gc.freeze()  # a collection in the new process would write to, and so copy, each page with an object
        settled, settling = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(settled)
            self._settle(request)
            os.close(settling)
            return True
        os.close(settling)
        os.read(settled, 1)  # until it leads a session, by which it is killed with all that it starts
        os.close(settled)
        end = os.pidfd_open(pid)
        self._ends[end] = pid, request.id
        self._selector.register(end, selectors.EVENT_READ)
        self._answer(id=request.id, pid=pid)
        return False

    def _settle(self, request: ForkRequest) -> None:
        """Leave what is the server's, in the new process."""
        os.setsid()
        self._selector.close()
        for end in self._ends:
            os.close(end)
        self._requests.close()
        for descriptor, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        ):
            opened = os.open(path, flags, 0o666)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
        os.dup2(1, 2)
        os.environ.clear()
        os.environ.update(request.environment)
        with suppress(OSError):  # what `ps` and `top` call it
            Path("/proc/self/comm").write_text(f"rljob-{request.role}", encoding="ascii")
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # else all forks would draw the same numbers; Python's own generator sees to itself

    def _report_end(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        pid, request = self._ends.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        self._answer(id=request, code=os.waitstatus_to_exitcode(status))

    def _answer(self, **words: int) -> None:
        with suppress(ConnectionError):  # nobody listens any more: the next read finds it closed
            self._requests.sendall(json.dumps(words).encode() + b"\n")


def _write_to(log: str) -> None:
    """Append what this process has written until now, and writes from now on, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        with suppress(OSError):  # it was no file
            os.write(opened, os.pread(1, os.fstat(1).st_size, 0))
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        os.close(opened)


def _has_opened_gpu() -> bool:
    """Whether a library has opened a GPU in this process: CUDA would not work in processes that it forks."""
    for descriptor in _FDS.iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()).startswith(_DEVICES):
                return True
    return False


def serve(modules: Modules) -> ForkRequest | None:
    """Answer the requests on standard input; see `ForkServer.serve`."""
    return ForkServer(socket.socket(fileno=0), modules).serve()
