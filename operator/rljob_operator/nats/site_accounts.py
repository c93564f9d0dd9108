"""The NATS accounts between a hub and its sites: what crosses a leafnode, and for which jobs.

A leafnode connects one account of the site's server with one of the hub's. So that neither server's configuration has
to know of any job, these are two *borders*, which have no JetStream and no clients: a border imports from the account
of a job's streams what the other side may have of it, and a job's account imports from the border what comes from
there. A job begins or ends by tokens that the servers are given; nothing is reloaded or restarted.

What a border does not import finds nobody. So a site
reaches what is listed here of the jobs that have pools there, whatever its leafnode sends.

The operators of hub and site talk through a pair of accounts of their own, which cross the same borders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_core.site_border import leaf_permissions
from rljob_core.spec import HUB
from rljob_operator.nats.credentials import Issuer, user_credentials
from rljob_operator.nats.crossings import (
    FLOW,
    RESET,
    RESET_EXPORT,
    STREAM_EXPORTS,
    Claims,
    Crossing,
    service_export,
)
from rljob_operator.nats.job_accounts import UNLIMITED, account_token
from rljob_operator.nats.jwt import NkeyKind, derived_seed, public_key
from rljob_operator.nats.permissions import Permissions

_LEAFNODES = 4
"""Connections of a site at once: of its servers, and of those that are not known to be lost yet."""
_TALKERS = 8
"""Connections to the account through which operators talk."""
_TALK_BYTES = 1 << 30
"""Of the two buckets, and of what is being replaced there."""


def too_many_jobs(site: str, limit: int) -> str:
    """Why a job's streams do not cross a border: the server takes no longer token than this, in bytes."""
    return (
        f"Site {site} has so many jobs that the NATS server does not take a list of all of them ({limit} bytes): "
        "wait until some of them have ended, or raise the server's max_payload, at the hub and at the site"
    )


@dataclass(frozen=True, slots=True)
class SiteAccounts:
    """The border, and the account through which operators talk, of one site on one server.

    Args:
        issuer: of the installation that has the server: the hub's, or the site's.
        site: its name.
        at_site: whether the server is the site's.
        domain: of the site's server; empty if it is the site's name.
    """

    issuer: Issuer
    site: str
    at_site: bool = False
    domain: str = ""

    @property
    def border(self) -> str:
        """Public key of the border."""
        return self._account("border")

    @property
    def talk(self) -> str:
        """Public key of the account through which operators talk."""
        return self._account("talk")

    def border_token(self, crossings: Iterable[tuple[str, Crossing]], *, revision: int) -> str:
        """The token of the border.

        Args:
            crossings: by public key of the account with the streams, what crosses.
            revision: grows whenever anything else changes.
        """
        site, imports = self.site, []
        for account, crossing in crossings:
            made = crossing.site_border_imports if self.at_site else crossing.hub_border_imports
            imports += made(account)
        here, there = (site, HUB) if self.at_site else (f"{HUB}.{site}", self.domain or site)
        exports: list[Claims] = [
            {"name": "in", "subject": f"to.{here}.>", "type": "stream"},
            {"name": "flow", "subject": f"{FLOW}.*.*.*", "type": "stream"},
            service_export(f"$JS.{there}.API.{RESET}.>"),
        ]
        if not self.at_site:
            exports.append(service_export(f"to.{site}.>"))
        return self._token(
            "border",
            {"limits": {**UNLIMITED, "leaf": _LEAFNODES, "conn": 0}, "exports": exports, "imports": imports},
            revision,
        )

    def talk_token(self, crossing: Crossing, *, revision: int) -> str:
        """The token of the account through which operators talk."""
        imports = crossing.site_imports(self.border) if self.at_site else crossing.hub_imports(self.border)
        stored = {"streams": 4, "consumer": 16, "mem_storage": -1, "disk_storage": _TALK_BYTES}
        return self._token(
            "talk",
            {
                "limits": {**UNLIMITED, "conn": _TALKERS, **stored},
                "exports": [*STREAM_EXPORTS, RESET_EXPORT],
                "imports": imports,
            },
            revision,
        )

    def talk_credentials(self) -> str:
        """With which the operator connects to the account through which it talks."""
        return user_credentials(
            name=f"{self.site}/operator",
            seed=self._user("talk"),
            signing=self._signing("talk"),
            account=self.talk,
            granted=Permissions((">",), (">",)),
        )

    def leaf_credentials(self) -> str:
        """With which the site's server connects to the hub's border: the only secret that goes from hub to site."""
        allowed = leaf_permissions(self.site, domain=self.domain, isolated=True)
        return user_credentials(
            name=f"{self.site}/leafnode",
            seed=self._user("border"),
            signing=self._signing("border"),
            account=self.border,
            granted=Permissions(allowed.publish, allowed.subscribe),
            kinds=("LEAFNODE", "LEAFNODE_WS"),
        )

    def _account(self, name: str) -> str:
        return public_key(derived_seed(NkeyKind.ACCOUNT, self.issuer.accounts_seed, self._label(name)))

    def _signing(self, name: str) -> str:
        return derived_seed(NkeyKind.ACCOUNT, self.issuer.signing_seed, self._label(name))

    def _user(self, name: str) -> str:
        return derived_seed(NkeyKind.USER, self.issuer.signing_seed, self._label(name))

    def _label(self, name: str) -> str:
        return f"site/{self.site}/{name}"  # no job's: those have a UID

    def _token(self, name: str, claims: Claims, revision: int) -> str:
        return account_token(
            self.issuer.signing_seed,
            name=self._label(name),
            account=self._account(name),
            revision=revision,
            signing_keys=[public_key(self._signing(name))],
            **claims,
        )
