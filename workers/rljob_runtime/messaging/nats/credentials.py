"""A user's NATS credentials: a seed, which stays, and a token, which may expire and is read at each connection."""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats.errors
import nkeys

_BEGIN = "-----BEGIN"
_TOKEN = re.compile(r"BEGIN NATS USER JWT-----\s+(\S+)")
_SEED = re.compile(r"BEGIN USER NKEY SEED-----\s+(\S+)")


class CredentialsUnusable(nats.errors.Error):
    """The credentials hold no token or no seed, or the token has expired."""


class Credentials:
    """Where a user's credentials are, and what nats-py asks of them.

    Args:
        given: the text of a credentials file, or the path of one.
        token_path: a file with the token; None if it is in `given`. A renewed token is written there.
    """

    def __init__(self, given: str, token_path: str | None = None) -> None:
        self._given = given
        self._token_path = token_path
        self._used = self._over = ""

    def text(self) -> str:
        """What the credentials file holds.

        Raises:
            OSError: it cannot be read.
        """
        return self._given if self._given.startswith(_BEGIN) else _read(self._given)

    def token(self) -> str:
        """The token as it is now.

        Raises:
            CredentialsUnusable: there is none, or the server has ended it (`end`).
            OSError: it cannot be read.
        """
        found = self._stored()
        if not found:
            raise CredentialsUnusable(f"{self._place} holds no NATS token")
        # To ask again would only cost the server: of its last second it would even accept it for a moment.
        if found == self._over:
            raise CredentialsUnusable(self._expiry(claims_of(found)))
        self._used = found
        return found

    def end(self) -> None:
        """The server says that the token of the newest connection has expired."""
        self._over = self._used

    def _stored(self) -> str:
        if self._token_path is not None:
            return _read(self._token_path).strip()
        match = _TOKEN.search(self.text())
        return match[1] if match else ""

    def signature(self, nonce: str) -> bytes:
        """The proof that the client has the seed, for what the server asks this time.

        Raises:
            CredentialsUnusable: there is no seed.
            OSError: it cannot be read.
        """
        match = _SEED.search(self.text())
        try:
            pair = nkeys.from_seed(bytearray(match[1] if match else "", "utf-8"))
        except (nkeys.NkeysError, ValueError) as error:
            raise CredentialsUnusable("the NATS credentials hold no seed (nkey)") from error
        return base64.b64encode(pair.sign(nonce.encode()))

    def options(self) -> dict[str, Any]:
        """nats-py's options."""
        return {"user_jwt_cb": lambda: bytearray(self.token(), "utf-8"), "signature_cb": self.signature}

    def expired(self, now: float) -> str:
        """What to say of a token whose time is over; empty if there is none that is.

        Args:
            now: seconds since 1970.
        """
        try:
            claims = claims_of(self._stored())
        except OSError:
            return ""
        ends = claims.get("exp")
        return self._expiry(claims) if isinstance(ends, int) and ends <= now else ""

    def _expiry(self, claims: dict[str, Any]) -> str:
        when = datetime.fromtimestamp(claims["exp"], UTC).isoformat().replace("+00:00", "Z")
        remedy = (
            "put newer credentials there"
            if self._token_path is None
            else "the operator writes newer ones to the ConfigMap of which this file is a copy; see whether it runs, "
            "and what its log says of this job"
        )
        return f"the credentials of {claims.get('name')} in {self._place} expired at {when}: {remedy}"

    @property
    def _place(self) -> str:
        if self._token_path is not None:
            return self._token_path
        return "RLJOB_NATS_CREDENTIALS" if self._given.startswith(_BEGIN) else self._given


def claims_of(token: str) -> dict[str, Any]:
    """What a token says, without a look at its signature; empty if it is no token."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OSError(f"{path} is not UTF-8 text: {error}") from error
