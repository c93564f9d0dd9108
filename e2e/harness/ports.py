"""Ports of this machine: which are free, and whether anybody listens on one."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Different ones, free at this moment; another process may take one before it is used."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((address, 0))
        return [each.getsockname()[1] for each in sockets]


def hold_port(port: int = 0) -> socket.socket:
    """Reserve a port of the loopback interface: the system gives it to no other process while the socket is open.

    A server that reuses addresses, as nats-server and uvicorn do, can listen on it nevertheless, also after it was
    killed. A port that is merely free may be given to another process first, even to a client that tries to connect
    to it.

    Args:
        port: the number; 0 for any free one.

    Raises:
        OSError: another process listens on it.
    """
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    return held


def listens(address: str, port: int) -> bool:
    """Whether a connection is taken there."""
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def http_ok(address: str, port: int, path: str) -> bool:
    """Whether a plain GET is answered with 200."""
    connection = http.client.HTTPConnection(address, port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
