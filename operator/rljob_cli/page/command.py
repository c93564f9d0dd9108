"""`rljob ui`: serves a live page of runs on the loopback interface, until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rljob_cli.exits import exit_codes, run_async
from rljob_core.errors import SpecError

_HOST = "127.0.0.1"


def ui(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="Output folders of runs, running or not, or folders that hold such folders.",
            show_default=False,
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the loopback interface; 0 for any free port.")
    ] = 0,
) -> None:
    """Show runs on a live page in a browser: curves, timeline, buffers, engines, samples, audit, comparison.

    The page is served on the loopback interface and needs no network. The address that is printed holds a token: who
    has the address may read the runs. The page follows runs that are under way, and shows those that have ended. It
    writes nothing into them.

    **Examples**

        rljob ui runs/chain-sum

        rljob ui runs/a runs/b              # also to compare them

        rljob ui runs --port 8000           # all runs in a folder
    """
    with exit_codes():
        run_async(lambda: serve_page(paths, port))


async def serve_page(paths: Sequence[Path], port: int) -> None:
    """Print the page's address, and serve it until SIGINT or SIGTERM.

    Args:
        paths: as `rljob ui` is given them.
        port: of the loopback interface; 0 for any free port.

    Raises:
        SpecError: a path is no folder, the port is taken, or what the page needs is not installed.
    """
    try:
        from rljob_cli.page.server import serve
    except ImportError as error:
        raise SpecError(
            "", f"the page needs starlette and uvicorn ({error}): pip install 'rljob[ui]'"
        ) from error
    from rljob_cli.page.catalog import Catalog

    catalog = Catalog(paths)
    listener = _listen(port)
    token = secrets.token_urlsafe(24)
    address = f"http://{_HOST}:{listener.getsockname()[1]}/?token={token}"
    typer.echo(
        f"{address}\nopen this address in a browser of this machine; Ctrl-C ends the page, not the runs"
    )
    await serve(catalog, listener, token=token)


def _listen(port: int) -> socket.socket:
    """A socket on the loopback interface.

    Raises:
        SpecError: the port is taken, or not for this user.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
    except OSError as error:
        listener.close()
        raise SpecError("--port", f"{port}: {error.strerror}: choose another, or leave it out") from error
    listener.listen(64)
    return listener
