"""A local port that leads to a port of a pod, through the API server: each connection by a port-forward of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rljob_core.errors import RLJobError

_LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 1 << 16


@contextmanager
def forwarded(connect: Callable[[], Any]) -> Iterator[int]:
    """Listen on a free port of the loopback interface until the context ends; yields the port.

    A connection that breaks is not repaired: a client connects again, and gets a new way, to a pod that is ready then.

    Args:
        connect: returns a socket that leads to the pod; its errors end the connection that asked for it. It is called
            in threads, once before the port is yielded.

    Raises:
        RLJobError: the first call of `connect` failed.
    """
    connect().close()
    with socket.create_server((_LOOPBACK, 0)) as listener:
        accepting = threading.Thread(target=_accept, args=(listener, connect), daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept


def _accept(listener: socket.socket, connect: Callable[[], Any]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:  # the listener was closed
            return
        threading.Thread(target=_serve, args=(near, connect), daemon=True).start()


def _serve(near: socket.socket, connect: Callable[[], Any]) -> None:
    """Copy in both directions until one side ends."""
    with near:
        try:
            far = connect()
        except RLJobError:  # the client sees a connection that ends, and tries again
            return
        try:
            up = threading.Thread(target=_copy, args=(near, far), daemon=True)
            up.start()
            _copy(far, near)
            up.join()
        finally:
            far.close()


def _copy(source: Any, target: Any) -> None:
    """Copy until the source ends; then end both sockets, so that the other direction's copying ends, too."""
    with suppress(OSError):
        while part := source.recv(_CHUNK_BYTES):
            target.sendall(part)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
