"""`rljob nats-init`: creates the keys, accounts and Secrets of a NATS installation."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_cli.generated_files import as_yaml

if TYPE_CHECKING:
    from rljob_operator.nats.accounts import Seeds

SECRETS_FILE = "secrets.yaml"


def nats_init(
    folder: Annotated[Path, typer.Argument(help="Where the files are kept.", show_default=False)],
    namespace: Annotated[str, typer.Option(help="Of NATS and the operator.")] = "rljob-system",
    accounts_folder: Annotated[
        str, typer.Option(help="Where nats-server keeps the jobs' accounts: on its volume.")
    ] = "/data/accounts",
    host: Annotated[
        list[str],
        typer.Option(help="Name or address of a server elsewhere, for its certificate; may be repeated."),
    ] = [],  # noqa: B006  typer's way
) -> None:
    """Make the keys by which NATS knows the operator and every job's roles.

    Writes `seeds.json` (keep it secret and safe: all else follows from it), `accounts.conf` (the part of the server's
    configuration that makes it ask for credentials; no secret), `server.crt` and `server.key` (the server's certificate
    and its key) and `secrets.yaml` (the Secrets for the cluster, with all but the seeds).
    Run again, it writes the same; without `signing` in `seeds.json`, a new signing key, which ends all credentials
    made with the old one, and no stream.

    **Examples**

        rljob nats-init nats && kubectl apply -f nats/secrets.yaml
    """
    from rljob_operator.nats.accounts import ACCOUNTS_FILE, SEEDS_FILE, Seeds, certificate, server_config

    try:
        folder.mkdir(parents=True, exist_ok=True)
        seeds = Seeds.complete(_known(folder / SEEDS_FILE), os.urandom)
        shown, key = certificate(seeds, namespace=namespace, hosts=host)
        texts = {
            SEEDS_FILE: seeds.text(),
            ACCOUNTS_FILE: server_config(seeds, folder=accounts_folder),
            "server.crt": shown,
            "server.key": key,
            SECRETS_FILE: _manifests(seeds, namespace, accounts_folder, host),
        }
        for name, text in texts.items():
            _replace(folder / name, text)
    except OSError as error:
        typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    except ValueError as error:
        typer.echo(f"error: {folder / SEEDS_FILE}: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"wrote {', '.join(texts)} to {folder}")


def _known(file: Path) -> dict[str, str]:
    """Read the seeds that the file already holds; empty if there is no file.

    Raises:
        ValueError: the file does not hold seeds.
    """
    from rljob_operator.nats.accounts import known_seeds

    try:
        return known_seeds(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _manifests(seeds: Seeds, namespace: str, accounts_folder: str, hosts: list[str]) -> str:
    from rljob_operator.nats.accounts import secrets

    objects = secrets(seeds, namespace=namespace, folder=accounts_folder, hosts=hosts)
    return "".join(as_yaml(one, "---\n") for one in objects)


def _replace(file: Path, text: str) -> None:
    """Replace a file atomically; only the current user can read it."""
    handle, scratch = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(scratch).replace(file)
    finally:
        Path(scratch).unlink(missing_ok=True)
