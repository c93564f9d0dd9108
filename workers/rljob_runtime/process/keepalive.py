"""Has the kernel find out that the other end of a TCP connection has gone without a word: its machine, or the link."""

from __future__ import annotations

import socket

#: Seconds of silence before the first probe, between two, and until what was sent must have arrived; probes.
_IDLE, _INTERVAL, _SENT, _PROBES = 15, 5, 30, 3


def keep_alive(connection: socket.socket) -> None:
    """End the connection about half a minute after the other end has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": _IDLE,
        "TCP_KEEPINTVL": _INTERVAL,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": _SENT * 1000,
    }
    for name, value in values.items():
        option = getattr(socket, name, None)
        if option is not None:  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
