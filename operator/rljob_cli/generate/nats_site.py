"""`rljob nats-site`: prints what connects a site's nats-server with the hub's, where both ask for credentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def nats_site(
    site: Annotated[str, typer.Argument(help="Name of the Site.", show_default=False)],
    issuer: Annotated[
        Path,
        typer.Argument(help="The operator's issuer.json: of the hub, or of the site.", show_default=False),
    ],
    hub: Annotated[
        str,
        typer.Option(help="At the site: where the hub's server takes leafnodes, as nats-leaf://host:7422."),
    ] = "",
    credentials: Annotated[
        str, typer.Option(help="At the site: path of the credentials, as the site's server sees it.")
    ] = "/etc/nats-leaf/leaf.creds",
    domain: Annotated[
        str, typer.Option(help="At the hub: the Site's spec.domain, if it is not its name.")
    ] = "",
) -> None:
    """Print what connects the nats-server of a site with the hub's.

    With the hub's `issuer.json`, the credentials of the site's leafnode, which are secret and all that goes from hub to
    site. With the site's own and `--hub`, the lines for the configuration of the site's server.

    **Examples**

        rljob nats-site east issuer.json > leaf.creds

        rljob nats-site east issuer.json --hub nats-leaf://nats.hub.example:7422
    """
    from rljob_operator.nats.credentials import Issuer
    from rljob_operator.nats.site_accounts import SiteAccounts

    try:
        made = Issuer.read(issuer.read_text(encoding="utf-8"))
        accounts = SiteAccounts(made, site, at_site=bool(hub), domain=domain)
        text = _remote(accounts.border, hub, credentials) if hub else accounts.leaf_credentials()
    except OSError as error:
        typer.echo(f"error: {issuer}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    except (ValueError, TypeError) as error:
        typer.echo(f"error: {issuer}: is no issuer.json of rljob-nats-issuer: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(text, nl=False)


def _remote(account: str, url: str, credentials: str) -> str:
    remote = {"url": url, "account": account, "credentials": credentials}
    lines = ", ".join(f"{name}: {json.dumps(value)}" for name, value in remote.items())
    return (
        'ping_interval: "3s"\nping_max: 2\n'
        f'leafnodes {{\n  reconnect: "1s"\n  remotes: [{{{lines}, compression: s2_auto}}]\n}}\n'
    )
