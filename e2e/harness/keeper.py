"""One cluster that several processes share: `python -m e2e.harness.keeper FOLDER`, which `lease` starts if need be.

The keeper holds the cluster for as long as anybody is connected to its socket. The connections are the reference
count: the kernel closes them with their process, so a count can be neither forgotten nor wrong, and the last test
process to end, be it by `kill -9`, ends the cluster. It sends the kubeconfig's path to whoever connects.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.harness import errors
from e2e.harness.cache import locked
from e2e.harness.cluster import Cluster
from e2e.harness.control_plane import ControlPlane
from e2e.harness.errors import ClusterError, HarnessError, ProgramLostError
from e2e.harness.node import parse_nodes

_STAY, _STOP, _BYE = b"stay\n", b"stop\n", b"bye\n"
_SPAWN_SECONDS = 180.0  # Python takes its time on a busy machine, and so does a keeper that ends
_FIRST_SECONDS = 10.0  # for the one who started the keeper to connect


# ---- who uses it


@contextmanager
def lease(folder: Path, *, nodes: Sequence[str] = ()) -> Iterator[Path]:
    """Share the cluster that is kept in this folder, started if it is not there; yields its kubeconfig.

    Args:
        folder: the same for all who share; holds the logs.
        nodes: as `parse_nodes` takes them; none is a control plane alone. The first to come decides.
    """
    with locked(folder / "lock"):
        connection = _connect(folder) or _spawn(folder, nodes)
    with connection:
        yield _kubeconfig(connection)
        with suppress(OSError):  # a cluster that is gone already
            connection.sendall(_BYE)
            connection.recv(1)  # closed once we are counted off, or all is removed if we were the last


def hold(folder: Path, *, nodes: Sequence[str] = ()) -> Path:
    """Start a cluster that stays until `release`, with or without users; returns its kubeconfig."""
    with locked(folder / "lock"):
        if connection := _connect(folder):
            connection.close()
            raise ClusterError(f"there is a cluster in {folder} already")
        connection = _spawn(folder, nodes)
    with connection:
        try:
            kubeconfig = _kubeconfig(connection)
        except KeyboardInterrupt:
            _end(connection)
            raise
        connection.sendall(_STAY)  # only now: until then it goes with us, whatever happens
        return kubeconfig


def release(folder: Path) -> bool:
    """End the cluster in this folder, whoever uses it, and wait until it is gone; whether there was one."""
    connection = _connect(folder)
    if connection is None:
        return False
    with connection:
        _end(connection)
    return True


def _end(connection: socket.socket) -> None:
    """Returns when all is removed."""
    with suppress(ConnectionError):
        connection.sendall(_STOP)
        while connection.recv(1024):
            pass


def _kubeconfig(connection: socket.socket) -> Path:
    line = ""
    with suppress(ConnectionError), connection.makefile() as lines:
        line = lines.readline()
    answer = json.loads(line or '{"error": "the keeper of the cluster died; see keeper.log", "kind": ""}')
    if "error" in answer:
        raise getattr(errors, answer["kind"], HarnessError)(answer["error"])
    return Path(answer["kubeconfig"])


def _connect(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(folder / "keeper.sock"))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _spawn(folder: Path, nodes: Sequence[str]) -> socket.socket:
    """Start a keeper that is nobody's child, and connect to it. The caller holds the lock."""
    folder = folder.absolute()
    with (folder / "keeper.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", sys.executable, "-m", "e2e.harness.keeper", str(folder), *nodes],
            cwd=Path(__file__).resolve().parents[2],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        return _await_keeper(folder)
    except KeyboardInterrupt:
        _end(_await_keeper(folder))
        raise


def _await_keeper(folder: Path) -> socket.socket:
    deadline = time.monotonic() + _SPAWN_SECONDS
    while (connection := _connect(folder)) is None:
        if time.monotonic() > deadline:
            raise ProgramLostError(f"the keeper of the cluster did not start: {folder / 'keeper.log'}")
        time.sleep(0.05)
    return connection


# ---- the keeper


def keep(folder: Path, nodes: Sequence[str]) -> None:
    """Start the cluster, serve those who connect, stop it."""
    path = folder / "keeper.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)
        clients: set[socket.socket] = set()
        try:
            with Cluster(folder, parse_nodes(nodes)) if nodes else ControlPlane(folder) as cluster:
                try:
                    _serve(listener, clients, str(cluster.kubeconfig), folder)
                finally:
                    path.unlink(missing_ok=True)  # nobody shall come while it is being stopped
        except HarnessError as error:
            _refuse(listener, error)
        finally:
            path.unlink(missing_ok=True)
            _tidy(folder)
            for client in clients:  # so that they know
                client.close()


def _serve(listener: socket.socket, clients: set[socket.socket], kubeconfig: str, folder: Path) -> None:
    """Until the last user has gone (unless one has said stay), or one says stop."""
    greeting = json.dumps({"kubeconfig": kubeconfig}).encode() + b"\n"
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        timeout: float | None = _FIRST_SECONDS
        forever = False
        while True:
            ready = [key.fileobj for key, _ in selector.select(timeout)]
            if listener in ready:
                client, _ = listener.accept()
                with suppress(ConnectionError):  # who only looked is counted off below
                    client.sendall(greeting)
                selector.register(client, selectors.EVENT_READ)
                clients.add(client)
                timeout = None
            for client in clients.intersection(ready):
                said = b""
                with suppress(ConnectionError):
                    said = client.recv(1024)
                if said.startswith(_STOP):
                    return
                forever = forever or said.startswith(_STAY)
                selector.unregister(client)
                if clients == {client} and not forever and _unwanted(listener, folder):
                    return
                clients.discard(client)
                client.close()
            if not ready and not clients and _unwanted(listener, folder):
                return


def _unwanted(listener: socket.socket, folder: Path) -> bool:
    """Whether nobody is about to connect. If so nobody can any more: the socket's name is gone."""
    with locked(folder / "lock"):  # connections are made under it
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            if selector.select(0):
                return False
        (folder / "keeper.sock").unlink(missing_ok=True)
        return True


def _refuse(listener: socket.socket, error: HarnessError) -> None:
    """Tell why there is no cluster to all who wait for it."""
    answer = json.dumps({"error": str(error), "kind": type(error).__name__}).encode() + b"\n"
    listener.settimeout(1.0)
    with suppress(TimeoutError):
        while True:
            client, _ = listener.accept()
            with client, suppress(ConnectionError):
                client.sendall(answer)


def _tidy(folder: Path) -> None:
    """Leave the logs."""
    shutil.rmtree(folder / "certificates", ignore_errors=True)
    for file in folder.iterdir():
        if file.is_file() and file.suffix != ".log" and file.name not in {"lock", "keeper.lock"}:
            file.unlink()


def main() -> None:
    """The command line of the keeper."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.harness.keeper", description="keep a cluster for its users"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("nodes", nargs="*")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as an exception, through all that is to be stopped
    with locked(options.folder / "keeper.lock"):  # one that is still stopping would tidy up after this one
        keep(options.folder, options.nodes)


if __name__ == "__main__":
    main()
