"""The commands `rljob site add` and `rljob site forget`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rljob_cli.exits import EXIT_FAILED, exit_codes
from rljob_core.errors import SpecError

app = typer.Typer(
    name="site",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Let another cluster join this one, the hub, or say that one is lost. Run with a kubeconfig of the hub.",
)

Name = Annotated[str, typer.Argument(help="Name of the Site.", show_default=False)]


@app.command()
def add(
    name: Name,
    *,
    hub: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where the site reaches the hub's NATS server: the address of the Service nats-sites.",
            show_default=False,
        ),
    ],
    namespaces: Annotated[
        list[str],
        typer.Option(
            "--for", metavar="NAMESPACE", help="Its jobs may have pools there; * for all. Repeat it."
        ),
    ] = [],  # noqa: B006  typer's way
    create: Annotated[
        bool, typer.Option(help="Create the Site at the hub, or add the namespaces to it.")
    ] = True,
    image: Annotated[
        str, typer.Option(help="Of the site's operator.", show_default="that of the hub's operator")
    ] = "",
    system: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Namespace of the hub's operator and NATS server.")
    ] = "rljob-system",
) -> None:
    """Print what lets another cluster join, for `kubectl apply` there.

    It is a whole installation: an operator that runs the hub's pools, and a NATS server that makes one connection, to
    the hub's. **It holds a secret**, the credentials of that connection; all other keys are made at the site. The hub
    needs no access to the site.

    **Examples**

        kubectl rljob site add west --hub nats.hub.example --for team-a > join.yaml

        kubectl --context west apply --server-side -f join.yaml
    """
    with exit_codes(), _cluster("rljob site add"):
        from rljob_cli.generated_files import as_yaml
        from rljob_cli.sites.add import HubAddress, add_site

        address = HubAddress.parse(hub)
        objects, said = asyncio.run(
            add_site(name, address, namespaces=namespaces, create=create, image=image, system=system)
        )
        typer.echo("---\n".join(as_yaml(one, "") for one in objects), nl=False)
        for line in said:
            print(line, file=sys.stderr)  # noqa: T201  stdout is the file


@app.command()
def forget(name: Name) -> None:
    """Say that a site which is away is lost for good.

    What its engines were generating for the current steps and later ones goes to others within two minutes, instead of
    after its grace, and its engines count for nothing. The word holds until the site is heard again. It is an
    annotation of the Site: anybody who may change Sites may say it. A site that is connected is not forgotten.

    **Examples**

        rljob site forget west

        kubectl rljob site forget west
    """
    with exit_codes(), _cluster("rljob site forget"):
        from rljob_cli.sites.forget import forget_site

        typer.echo(asyncio.run(forget_site(name)))


@contextmanager
def _cluster(command: str) -> Iterator[None]:
    """Say what is wrong with the Kubernetes client, or what the API server refuses."""
    try:
        from rljob_operator.cluster.kube.errors import ApiError
        from rljob_operator.cluster.kube.login import LoginError
    except ImportError as error:
        package = (error.name or "kubernetes").partition(".")[0]
        raise SpecError(
            command, f"needs {package}, which is not installed: install rljob[operator]"
        ) from error
    try:
        yield
    except (ApiError, LoginError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
