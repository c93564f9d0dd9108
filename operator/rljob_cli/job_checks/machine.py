"""Checks of what a run needs of this machine: local connections, processes and threads."""

from __future__ import annotations

import errno
import socket
import threading

_THREADS = 64
"""The roles, the server and the libraries of the smallest run have as many at least."""


def check_machine() -> None:
    """This session may have as many threads as a run needs, and reach itself over the loopback interface.

    Without, processes wait for what never comes.

    Raises:
        OSError, RuntimeError: not so; `rljob_core.exhausted` names the limit.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=3).close()
    except OSError as error:
        if (
            error.errno == errno.ENETUNREACH
        ):  # the address can be had, and not be reached: the interface is down
            raise OSError(errno.EADDRNOTAVAIL, error.strerror) from error
        raise
    over, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(_THREADS):
            thread = threading.Thread(target=over.wait)
            thread.start()
            started.append(thread)
    finally:
        over.set()
        for thread in started:
            thread.join()
