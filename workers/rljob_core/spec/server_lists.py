"""Lists of servers in the spec, with commas between them."""

from __future__ import annotations

ONE_SCHEME = (
    "must have the same scheme before each server, as the first one's counts for all: for instance "
    "tls://a:4222,tls://b:4222"
)


def one_scheme(urls: str) -> bool:
    """Whether servers, with commas between them, have the same scheme: TLS is asked for of all or of none."""
    scheme, *_ = urls.split("://")
    return urls.count(",") == urls.count(f",{scheme}://")
