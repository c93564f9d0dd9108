"""How a rollout worker and an environment pod know each other: TLS 1.3 with certificates of both, of the job's own.

The operator makes an authority for each job, and with it one certificate for the job's environment pods and one for its
rollout workers (docs/design/environments.md). An environment server unpickles what it is sent, so it reads nothing of
a connection before the other end has proved in the handshake that it has the workers' key; and a worker gives prompts
and responses to no server that has not proved that it has the pods' key. No key is ever sent, and each handshake is of
its own: what somebody has recorded proves nothing in another one.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from rljob_core import worker_protocol


def server_context(folder: Path) -> ssl.SSLContext:
    """What an environment pod accepts connections with: it refuses all that do not come from the job's workers.

    Args:
        folder: with the files that `worker_protocol` names.

    Raises:
        OSError: a file is missing, or is no certificate or key.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # so that every connection has a whole handshake
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    """What a worker connects with; arguments and errors as for `server_context`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, folder)


def keys_folder() -> Path:
    """The folder of this process's keys."""
    return Path(os.environ[worker_protocol.ENVIRONMENT_KEYS])


def _context(protocol: ssl._SSLMethod, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder / worker_protocol.ENVIRONMENT_AUTHORITY)
    context.load_cert_chain(
        folder / worker_protocol.ENVIRONMENT_CERTIFICATE, folder / worker_protocol.ENVIRONMENT_KEY
    )
    return context
