"""The network of one cluster's nodes: a switch in a network namespace of its own, with this machine plugged in.

    this machine ── rljob160 ─┐
                              switch ── node0 ── east ── its pods
                                   └─── node1 ── west ── its pods

A cluster owns one /16, the first of sixteen that this machine has no route to. Nothing of this machine's own
network is changed except one link and the routes through it; no packet filter and no forwarding is touched. All of
it hangs on processes, so that the kernel takes it away when they are gone, however they went.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.harness.cache import locked
from e2e.harness.daemon import Daemon
from e2e.harness.errors import ClusterError, NotAvailableError

MAX_NODES = 16
_SECOND_NUMBERS = range(160, 176)  # 10.160.0.0/16 and on
_LOCK = Path(tempfile.gettempdir()) / "rljob-e2e-network.lock"


class Network:
    """Addresses and links. `start` it first; then `plug` nodes in as their namespaces come and go.

    `e2e.harness.wan` connects the networks of two clusters.
    """

    def __init__(self, logs: Path) -> None:
        self._switch = Daemon("switch", ["unshare", "--net", "sleep", "infinity"], log=logs / "switch.log")
        self._number = 0
        self._plugged: dict[int, int] = {}
        """By node, the process in whose network namespace its link ends."""
        self._beyond: list[str] = []
        """Ranges of other clusters, to which links go from the switch."""

    # ---- addresses

    @property
    def host(self) -> str:
        """This machine's, as nodes and pods see it: where the API server listens."""
        return f"10.{self._number}.0.1"

    @property
    def dns(self) -> str:
        """The switch's own, where the cluster's names are answered."""
        return f"10.{self._number}.0.2"

    def node(self, index: int) -> str:
        return f"10.{self._number}.0.{10 + index}"

    def pods(self, index: int) -> str:
        """The range of one node's pods."""
        return f"10.{self._number}.{16 + index}.0/24"

    @property
    def all_pods(self) -> str:
        return f"10.{self._number}.16.0/20"

    @property
    def services(self) -> str:
        return f"10.{self._number}.128.0/17"

    @property
    def everything(self) -> str:
        """The range of the whole cluster."""
        return f"10.{self._number}.0.0/16"

    # ---- links

    @property
    def switch(self) -> Sequence[str]:
        """What to put before a command that is to run in the switch's namespace."""
        return _within(self._switch.pid)

    def start(self) -> None:
        """Choose a free range and plug this machine into a new switch."""
        self._switch.start()
        own = Path("/proc/self/ns/net").readlink()
        self._switch.wait_until(
            lambda: Path(f"/proc/{self._switch.pid}/ns/net").readlink() != own, seconds=60
        )
        with locked(_LOCK):  # until the routes are there for the next one to see
            self._number = _free_number()
            link = f"rljob{self._number}"
            _ip(
                [],
                f"link add {link} type veth peer name uplink netns {self._switch.pid}",
                f"address add {self.host}/24 dev {link}",
                f"link set {link} up",
            )
        _ip(
            self.switch,
            "link set lo up",
            "link add switch type bridge forward_delay 0",
            f"address add {self.dns}/24 dev switch",
            "link set switch up",
            "link set uplink master switch up",
        )

    def plug(self, index: int, pid: int) -> None:
        """Connect the network namespace of a process as that node, in place of what was connected before."""
        inside = _within(pid)
        # The kernel takes links away a little after their namespace. And others remember a node's hardware address.
        subprocess.run(
            [*self.switch, "ip", "link", "delete", f"node{index}"], capture_output=True, check=False
        )
        _ip(
            self.switch,
            f"link add node{index} type veth peer name eth0 address 02:00:00:00:00:{index:02x} netns {pid}",
            f"link set node{index} master switch up",
            f"route replace {self.pods(index)} via {self.node(index)}",  # for answers to their questions of names
        )
        _ip(
            inside,
            "link set lo up",
            f"address add {self.node(index)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.host}",
            *(f"route add {other} via {self.dns}" for other in self._beyond),
            *(
                f"route add {self.pods(other)} via {self.node(other)}"
                for other in range(MAX_NODES)
                if other != index
            ),
        )
        _forward(inside)
        _ip([], f"route replace {self.pods(index)} via {self.node(index)}")
        if not self._plugged:  # any node would do
            _ip([], f"route replace {self.services} via {self.node(index)}")
        self._plugged[index] = pid

    @property
    def name_of_link(self) -> str:
        """For a new device of this machine, with which `connect` is called."""
        return f"rljob{self._number}w{len(self._beyond)}"

    def connect(self, device: str, other: Network) -> None:
        """Move a device of this machine to the switch, and route what is for another cluster over it."""
        _ip([], f"link set {device} netns {self._switch.pid}")
        _ip(self.switch, f"link set {device} up", f"route add {other.everything} dev {device}")
        _forward(self.switch)
        self._beyond.append(other.everything)
        for pid in self._plugged.values():
            _ip(_within(pid), f"route add {other.everything} via {self.dns}")

    def cut(self, index: int) -> None:
        """Pull that node's cable: packets are lost without a word."""
        _ip(self.switch, f"link set node{index} down")

    def mend(self, index: int) -> None:
        """Put the cable back."""
        _ip(self.switch, f"link set node{index} up")

    def stop(self) -> None:
        """Take the switch away, and with it this machine's link."""
        if self._switch.running and self._number:
            _ip([], f"link delete rljob{self._number}")
        self._switch.stop(kill=True)


def _free_number() -> int:
    """The second number of a range that no route of this machine reaches into; the default route reaches all."""
    routes = [
        ipaddress.ip_network(route["dst"])
        for route in _ip_json("route", "show", "table", "all")
        if route["dst"] != "default"
    ]
    for number in _SECOND_NUMBERS:
        wanted = ipaddress.ip_network(f"10.{number}.0.0/16")
        if not any(wanted.overlaps(route) for route in routes):
            return number
    raise NotAvailableError("no free address range between 10.160.0.0/16 and 10.175.0.0/16 on this machine")


def _within(pid: int) -> list[str]:
    """What to put before a command that is to run in the network namespace of a process."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def _forward(where: Sequence[str]) -> None:
    """Let a namespace pass on packets that are not for itself."""
    subprocess.run([*where, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True)


def _ip_json(*arguments: str) -> Any:
    return json.loads(
        subprocess.run(["ip", "-4", "-json", *arguments], check=True, capture_output=True).stdout
    )


def _ip(where: Sequence[str], *commands: str) -> None:
    done = subprocess.run(
        [*where, "ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"ip failed: {done.stderr.strip()}\n" + "\n".join(commands))
