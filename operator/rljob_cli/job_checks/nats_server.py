"""Checks of the NATS server that a local run will use, before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Collection
from urllib.parse import urlparse

from rljob_core.errors import RLJobError, SpecError
from rljob_core.spec import RLJob

_NATS_PORT = 4222


def check_nats(job: RLJob, port: int | None) -> None:
    """The given server answers; the port for an embedded one is free.

    Raises:
        SpecError: not so.
    """
    if job.spec.nats.url is not None:
        if port is not None:
            raise SpecError("--nats-port", "spec.nats.url names a server already: remove one of both")
        if job.spec.rollout.sites:
            raise SpecError(
                "spec.nats.url",
                "rljob run starts the servers of sites beside its own only: leave it out, or the pools' site",
            )
        _check_answers(job.spec.nats.url)
        return
    from rljob_runtime.messaging.nats.server import binary

    try:
        binary()
    except RLJobError as error:
        raise SpecError("spec.nats.url", str(error)) from error
    if port is not None:
        _check_free(port)


def check_servers(job: RLJob, sites: Collection[str]) -> None:
    """Each site of a changed job has a server in the run that is under way.

    Raises:
        SpecError: one has none.
    """
    if new := sorted(set(job.spec.rollout.sites) - set(sites)):
        raise SpecError(
            "spec.rollout.pools",
            f"no server of site {new[0]} runs: stop the run, and continue it with --resume, which starts one",
        )


def _check_answers(urls: str) -> None:
    """One of the servers at these URLs, which commas separate, answers: of a cluster, the others may be away."""
    silent = []
    for url in urls.split(","):
        try:
            parsed = urlparse(url)
            host, port = parsed.hostname or "localhost", parsed.port or _NATS_PORT
        except ValueError as error:
            raise SpecError(
                "spec.nats.url", f"{url[:100]!r} is no URL ({error}): write nats://HOST:PORT"
            ) from error
        try:
            with socket.create_connection((host, port), timeout=3) as connection:
                # At tls:// the server may wait for the handshake.
                if parsed.scheme == "nats" and not connection.recv(5).startswith(b"INFO"):
                    raise SpecError("spec.nats.url", f"what answers at {host}:{port} is not a nats-server")
                return
        except OSError as error:
            silent.append(f"{host}:{port} ({error.strerror or error})")
    raise SpecError(
        "spec.nats.url",
        f"no nats-server answers at {' or '.join(silent)}: start one, or remove the field",
    )


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SpecError(
                "--nats-port",
                f"port {port} is in use: choose another, or leave the flag out for any free one",
            ) from error
