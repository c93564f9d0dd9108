"""The local ports that stand for container ports."""

from __future__ import annotations

import socket

from rljob_operator.cluster.port import Ref


class LocalPorts:
    """Gives every container port of a workload a free port of this machine.

    A socket stays bound to it until the workload is gone, so that the system assigns the port to no other program, even
    while the workload's server restarts. The server can still listen on it because it reuses addresses.
    """

    def __init__(self) -> None:
        self._held: dict[Ref, dict[int, socket.socket]] = {}

    def get(self, owner: Ref, port: int) -> int:
        """Return the local port of a container port, the same one each time."""
        held = self._held.setdefault(owner, {})
        if port not in held:
            held[port] = socket.socket()
            held[port].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held[port].bind(("127.0.0.1", 0))
        return int(held[port].getsockname()[1])

    def release(self, owner: Ref) -> None:
        """Let the system assign the workload's ports to other programs."""
        for held in self._held.pop(owner, {}).values():
            held.close()
