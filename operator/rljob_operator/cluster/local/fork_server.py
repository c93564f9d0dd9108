"""The fork server's process (`rljob_runtime.process.fork_server`), which may start before the cluster that uses it.

server = ForkServerProcess(cluster_environment(environment))
server.import_ahead(["torch"])        # while the caller does something else
async with LocalCluster(folder, environment, fork_server=server) as cluster: …
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket, socketpair
from typing import Any

from rljob_core import worker_protocol

ROLE = (sys.executable, "-m", worker_protocol.MODULE)
"""The program that runs the role that its last argument names."""


def cluster_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a local cluster's processes: a token that is theirs alone (`reaper`), and programs first on PATH
    that are of this interpreter's environment."""
    programs = str(Path(sys.executable).parent)
    path = f"{programs}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return {**environment, "PATH": path, worker_protocol.CLUSTER: str(uuid.uuid4())}


class ForkServerProcess:
    """A fork server, which ends with this process.

    Args:
        environment: its variables.

    Attributes:
        environment: the variables of the cluster that will use it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._socket, theirs = socketpair()
        self._owns_socket = True
        with theirs, tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                [*ROLE, worker_protocol.FORK_SERVER],
                env={**environment, **worker_protocol.dying_with(os.getpid())},
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def add_variables(self, variables: Mapping[str, str]) -> None:
        """Add variables to those of the cluster, before it exists; modules in `MODULES` are found here, too."""
        self.environment |= variables
        if path := variables.get(worker_protocol.MODULES):
            self._send({"path": path.split(os.pathsep)})

    def import_ahead(self, modules: Sequence[str]) -> None:
        """Have modules imported that roles will need."""
        self._send({"modules": list(modules)})

    def write_to(self, log: Path) -> None:
        """Let it write to a file, also what it has said until now."""
        self._send({"log": str(log)})

    def take_socket(self) -> socket:
        """What takes requests and gives answers; its new owner closes it."""
        self._owns_socket = False
        return self._socket

    def end(self) -> None:
        """End it, with what is left of what it has forked, and wait until it has ended; again without effect."""
        self._process.kill()  # it may be importing
        self._process.wait()
        if self._owns_socket:
            self._socket.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(ConnectionError):  # it has ended: its user hears of that
            self._socket.sendall(json.dumps(message).encode() + b"\n")
