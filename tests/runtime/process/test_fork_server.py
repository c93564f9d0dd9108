"""The process that forks others: what they get from it, what they do not, and that they end with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import pytest
from tests.waiting import until

from rljob_core import worker_protocol

PATIENCE = 300.0  # seconds; of a busy machine
# A role is a Python program here, and needs the modules that a variable names.
SERVER = """
import sys
from rljob_runtime.process import fork_server
from rljob_runtime.process.lifeline import die_with_parent
fork_server._DEVICES = sys.argv[1]
request = fork_server.serve(lambda role, environment: environment.get("NEEDS", "").split())
if request is not None:
    die_with_parent()
    exec(request.role, {})
"""


class Server:
    """A fork server, and the other end of its socket."""

    def __init__(self, folder: Path, output: BinaryIO | None = None) -> None:
        self.folder = folder
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE)
        self._answers = self._socket.makefile("r")
        with theirs, (folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(folder / "device")],
                stdin=theirs,
                stdout=output,
                stderr=output or log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "OF_SERVER": "1"},
            )

    def tell(self, **message: object) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, number: int, role: str, **environment: str) -> None:
        own = {worker_protocol.DIE_WITH_PARENT: "1", **environment}
        self.tell(id=number, role=role, environment=own, log=str(self.log(number)))

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer

    def fork(self, number: int, role: str, **environment: str) -> int:
        """Ask for a process; its id."""
        self.ask(number, role, **environment)
        answer = self.answer()
        assert answer["id"] == number
        return int(answer["pid"])

    def log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()
    assert server.process.wait(PATIENCE) == 0, (tmp_path / "server.log").read_text()


@pytest.mark.parametrize(
    ("role", "code"),
    [
        ("import sys; sys.exit(4)", 4),
        ("raise ValueError('why')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit; atexit.register(print, 'the end')", 0),
    ],
)
def test_it_says_how_a_process_ended(server: Server, role: str, code: int) -> None:
    server.log(7).write_text("--- start 1\n")
    server.fork(7, role)
    assert server.answer() == {"id": 7, "code": code}
    said = {1: "ValueError: why\n", 0: "the end\n"}.get(code, "")
    log = server.log(7).read_text()
    assert log.startswith("--- start 1\n")
    assert log.endswith(said), log


def test_a_process_has_its_own_environment_session_and_randomness_and_nothing_of_the_servers(
    server: Server,
) -> None:
    role = """
import json, os, random, sys
import numpy
print(json.dumps({
    "environment": dict(os.environ),
    "leads": os.getsid(0) == os.getpid(),
    "input": sys.stdin.read(),
    "open": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd > "2" and fd != "3"),
    "drawn": [random.random(), numpy.random.random()],
}))
"""
    said = []
    for number in (1, 2):
        server.fork(number, role, NEEDS="numpy.random", MINE=str(number))
        assert server.answer() == {"id": number, "code": 0}, server.log(number).read_text()
        said.append(json.loads(server.log(number).read_text()))
    assert [line["environment"].get("MINE") for line in said] == ["1", "2"]
    assert all(
        "OF_SERVER" not in line["environment"] and line["leads"] and not line["input"] for line in said
    )
    assert not any("socket" in name or "pidfd" in name for line in said for name in line["open"])
    assert not set(said[0]["drawn"]) & set(said[1]["drawn"])


def test_what_a_process_needs_is_imported_once_and_least_first(server: Server) -> None:
    (server.folder / "heavy.py").write_text("import os, time\ntime.sleep(1)\nprint(os.getpid())\n")
    (server.folder / "broken.py").write_text("raise ImportError('no such library')\n")
    role = "import os, sys; print(os.getppid(), 'heavy' in sys.modules)"
    server.fork(0, "pass")
    assert server.answer() == {"id": 0, "code": 0}
    server.ask(1, role, NEEDS="heavy")
    server.ask(2, role, NEEDS="heavy broken")
    server.ask(3, role)
    answers = [server.answer() for _ in range(6)]
    assert [answer["id"] for answer in answers if "pid" in answer] in ([3, 1, 2], [1, 3, 2])
    assert [answer["code"] for answer in answers if "code" in answer] == [0, 0, 0]
    for number in (1, 2):
        assert server.log(number).read_text() == f"{server.process.pid} True\n"


def test_no_process_is_made_once_a_library_has_opened_a_gpu(server: Server) -> None:
    (server.folder / "device").touch()
    (server.folder / "cuda.py").write_text(f"file = open({str(server.folder / 'device')!r})\n")
    server.fork(1, "pass")
    assert server.answer() == {"id": 1, "code": 0}
    server.ask(2, "pass", NEEDS="cuda")
    assert server.answer() == {"id": 2, "pid": 0}
    assert not server.log(2).exists()


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_its_processes_end_with_it(end: str, tmp_path: Path) -> None:
    server = Server(tmp_path)
    pid = server.fork(1, "import time\nprint('up', flush=True)\ntime.sleep(600)")
    forked = psutil.Process(pid)
    while not server.log(1).read_text():
        psutil.wait_procs([forked], timeout=0.05)
    if end == "killed":
        server.process.kill()
    server.close()
    assert psutil.wait_procs([forked], timeout=PATIENCE)[1] == []
    server.process.wait(PATIENCE)


def test_a_request_does_not_wait_for_all_that_is_imported_ahead(server: Server) -> None:
    begun, go = server.folder / "begun", server.folder / "go"
    waits = f"""
import pathlib, time
pathlib.Path({str(begun)!r}).touch()
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.01)
"""
    (server.folder / "first_ahead.py").write_text(waits)
    (server.folder / "second_ahead.py").write_text("")
    server.tell(modules=["first_ahead", "missing_ahead", "second_ahead"])
    until(begun.exists)
    role = "import sys; print([name for name in ('first_ahead', 'second_ahead') if name in sys.modules])"
    server.ask(1, role)
    go.touch()
    assert server.answer()["id"] == 1
    assert server.answer() == {"id": 1, "code": 0}
    assert server.log(1).read_text() == "['first_ahead']\n"
    server.fork(2, role, NEEDS="second_ahead missing_ahead")
    assert server.answer() == {"id": 2, "code": 0}
    assert server.log(2).read_text() == "['first_ahead', 'second_ahead']\n"


def test_what_it_said_before_it_had_a_log_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text("import sys; print('at first'); sys.stderr.write('too\\n')")
    (tmp_path / "says_more.py").write_text("print('later', flush=True)")
    with (tmp_path / "unnamed").open("w+b") as output:
        server = Server(tmp_path, output=output)
    (tmp_path / "unnamed").unlink()
    server.tell(modules=["says"])
    server.fork(1, "pass", NEEDS="says")
    assert server.answer() == {"id": 1, "code": 0}
    server.tell(log=str(tmp_path / "named.log"))
    server.tell(modules=["says_more"])
    server.fork(2, "pass", NEEDS="says_more")
    server.close()
    assert server.process.wait(PATIENCE) == 0
    said = (tmp_path / "named.log").read_text()
    assert sorted(said.splitlines()[:2]) == ["at first", "too"]
    assert said.splitlines()[2:] == ["later"]
