"""The link between clusters: what it carries, how late, and what it loses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.harness.availability import available
from e2e.harness.cluster import requirements
from e2e.harness.daemon import Daemon
from e2e.harness.network import Network
from e2e.harness.wan import Wan

DELAY = 0.05
_ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7))
print("listens", flush=True)
while True:
    data, peer = s.recvfrom(2000)
    print("heard", flush=True)
    s.sendto(data, peer)
"""
_ASK = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[2]))
began = time.monotonic()
s.sendto(b"x", (sys.argv[1], 7))
try:
    s.recvfrom(2000)
    print(time.monotonic() - began)
except TimeoutError:
    print("nothing")
"""


class Ends:
    """A node of each network: the hub's answers, the site's asks."""

    def __init__(self, wan: Wan, answers: Daemon, asks: list[str]) -> None:
        self.wan = wan
        self._answers = answers
        self._asks = asks

    def ask(self, *, patience: float = 60.0) -> str:
        """Seconds until an answer came, or `nothing` if none did for as long as it is waited for."""
        return subprocess.run(
            [*self._asks, str(patience)], check=True, capture_output=True, text=True
        ).stdout.strip()

    def heard(self) -> int:
        """How many questions have arrived."""
        return self._answers.log.read_text().count("heard")


def namespace_of(machine: Daemon) -> Path:
    """The machine's network namespace, once it has one of its own."""
    own, space = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{machine.pid}/ns/net")
    machine.wait_until(lambda: space.readlink() != own, seconds=240)
    return space


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with available():
        requirements(tmp_path)
    with ExitStack() as held:
        networks, machines = [], []
        for name in ("hub", "site"):
            network = Network(tmp_path / name)
            held.callback(network.stop)
            network.start()
            machine = Daemon(name, ["unshare", "--net", "sleep", "infinity"], log=tmp_path / f"{name}.log")
            held.callback(machine.stop, kill=True)
            machine.start()
            space = namespace_of(machine)
            network.plug(0, machine.pid)
            networks.append(network)
            machines.append(["nsenter", f"--net={space}", "--", sys.executable, "-c"])
        answers = Daemon("echo", [*machines[0], _ECHO], log=tmp_path / "echo.log")
        held.callback(answers.stop, kill=True)
        answers.start()
        answers.wait_until(lambda: "listens" in answers.log.read_text(), seconds=240)
        with Wan(*networks, delay=DELAY) as wan:
            yield Ends(wan, answers, [*machines[1], _ASK, networks[0].node(0)])


def test_packets_take_their_time_and_what_is_cut_is_lost(ends: Ends) -> None:
    assert float(ends.ask()) >= 2 * DELAY
    assert ends.heard() == 1
    ends.wan.cut(up=False)
    assert (ends.ask(patience=1.0), ends.heard()) == ("nothing", 2)
    ends.wan.mend()
    ends.wan.cut(down=False)
    assert (ends.ask(patience=1.0), ends.heard()) == ("nothing", 2)
    ends.wan.mend()
    assert float(ends.ask()) >= 2 * DELAY
    assert ends.heard() == 3
