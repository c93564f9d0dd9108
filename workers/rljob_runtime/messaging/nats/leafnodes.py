"""Configuration of nats-servers that are connected as leafnodes: the hub's, and that of a site.

A site's server makes the only connection, outwards, as a user that may send and receive what `leaf_permissions` says.
Clients at the hub that name no user, as all did before there were sites, may do anything there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit, urlunsplit

from rljob_core.site_border import leaf_permissions

_PINGS = ['ping_interval: "3s"', "ping_max: 2"]
"""A connection over which nothing arrives is given up after 9 s at most; with the server's defaults after 6 minutes."""
COMPRESSION = "s2_auto"
"""It compresses the more the longer the round trip is; `s2_best` would halve what the link carries."""
_CLIENT = "client"


def hub_config(port: int, passwords: Mapping[str, str], *, compression: str = COMPRESSION) -> list[str]:
    """Lines for the configuration of the hub's server, besides those of `render_config` with the domain `hub`.

    Args:
        port: at which leafnodes connect, on the loopback interface.
        passwords: of the sites' users, by site.
        compression: of what crosses.
    """
    users = [f"    {{user: {_CLIENT}, password: {json.dumps(_CLIENT)}}}"]
    for site, password in passwords.items():
        allowed = leaf_permissions(site)
        users += [
            f"    {{user: {json.dumps(site_user(site))}, password: {json.dumps(password)}, permissions: {{",
            f"      publish: {{allow: {_listed(allowed.publish)}}}",
            f"      subscribe: {{allow: {_listed(allowed.subscribe)}}}",
            "    }}",
        ]
    return [
        *_PINGS,
        "leafnodes {",
        "  host: 127.0.0.1",
        f"  port: {port}",
        "  no_advertise: true",  # sites would connect past what is between them and the hub
        f"  compression: {compression}",
        "}",
        "authorization {",
        "  users: [",
        *users,
        "  ]",
        "}",
        f"no_auth_user: {_CLIENT}",
    ]


def leaf_config(site: str, url: str, password: str, *, compression: str = COMPRESSION) -> list[str]:
    """Lines for the configuration of a site's server, besides those of `render_config` with the site as domain.

    Args:
        site: its name.
        url: at which the hub's server takes leafnodes, without a user.
        password: of the site's user.
        compression: of what crosses; the hub's server has the same.
    """
    parts = urlsplit(url)
    remote = urlunsplit(parts._replace(netloc=f"{site_user(site)}:{password}@{parts.netloc}"))
    return [
        *_PINGS,
        "leafnodes {",
        '  reconnect: "1s"',
        f"  remotes: [{{url: {json.dumps(remote)}, compression: {compression}}}]",
        "}",
    ]


def site_user(site: str) -> str:
    """Name of a site's user at the hub."""
    return f"site-{site}"


def _listed(subjects: Iterable[str]) -> str:
    return f"[{', '.join(map(json.dumps, subjects))}]"
