"""Which certificates of a NATS server a client trusts: those of the authorities that its credentials name.

A credentials file holds a token and a seed between lines of dashes; certificates stand after them in the same form, so
a client needs no other file to know the server.
"""

from __future__ import annotations

import re
import ssl
from typing import Any

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n?")
_HOST = re.compile(r"tls://(?:[^@/,]*@)?(?:\[(?P<address>[^]]+)\]|(?P<name>[^:/,]+))")


def tls_options(url: str, trusted: str) -> dict[str, Any]:
    """nats-py's options for a connection to a server at a `tls://` URL whose authority is known.

    The client then begins the handshake: nobody in between can ask it to do without. Empty for other URLs, and without
    certificates: nats-py then trusts the system's authorities, and waits for the server's greeting.

    Args:
        url: of the server.
        trusted: certificates of authorities (PEM), or a text that has them, as a credentials file does.
    """
    authorities = _CERTIFICATE.findall(trusted)
    if not url.startswith("tls://") or not authorities:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata="".join(authorities))
    options: dict[str, Any] = {"tls": context, "tls_handshake_first": True}
    hosts = {found["address"] or found["name"] for found in _HOST.finditer(url)}
    # The servers of a cluster tell clients their addresses, which the certificate does not have.
    if len(hosts) == 1:
        options["tls_hostname"] = hosts.pop()
    return options
