"""Runs the page's server on a socket until the process is interrupted."""

from __future__ import annotations

import socket

import uvicorn

from rljob_cli.page.catalog import Catalog
from rljob_cli.page.server import page_app


async def serve(catalog: Catalog, listener: socket.socket, *, token: str) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        catalog: of the runs.
        listener: on which the page is served.
        token: that requests have to carry.
    """
    app = page_app(catalog, token=token, port=listener.getsockname()[1])
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=3,
        ws="none",
    )
    await uvicorn.Server(config).serve(sockets=[listener])
