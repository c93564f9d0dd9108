"""NATS keys (nkeys) and signed tokens (JWT, version 2) in the format of `nats-server`.

A token depends on its arguments alone; Ed25519 signatures need no randomness. So every process of the operator computes
the same credentials, and the Secret that is named by their hash stays the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import nkeys

_KEY_BYTES = 1 + 32 + 2
"""Of a public key: its kind, the key, and a checksum."""
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
#: Seconds since 1970 at which every token says it was issued (the first of January 2026): a revocation that is dated
#: later, as every one is, covers it.
_ISSUED_AT = 1_767_225_600


class NkeyKind(IntEnum):
    """What a key identifies; the value is the byte that makes a public key begin with `O`, `A` or `U`."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


def seed_of(kind: NkeyKind, raw: bytes) -> str:
    """The seed (`SO…`, `SA…`, `SU…`) of the key with these 32 bytes."""
    seed: bytes = nkeys.encode_seed(raw, kind)
    return seed.decode()


def checked_seed(kind: NkeyKind, seed: str) -> str:
    """Return the seed if it is a seed of that kind.

    Raises:
        ValueError: it is not.
    """
    try:
        prefix, raw = nkeys.decode_seed(seed.encode())
    except (nkeys.NkeysError, ValueError):
        prefix, raw = None, b""
    # Encoding its bytes again reveals a changed letter.
    if prefix != kind or seed_of(kind, raw) != seed:
        raise ValueError(f"not the seed of {kind.name.lower()} keys: {seed[:4]}…")
    return seed


def derived_seed(kind: NkeyKind, parent: str, label: str) -> str:
    """A seed derived from another seed and a label by keyed BLAKE2b, which cannot be inverted."""
    _, raw = nkeys.decode_seed(parent.encode())
    digest = hashlib.blake2b(label.encode(), digest_size=32, key=bytes(raw), person=b"rljob-nats-key")
    return seed_of(kind, digest.digest())


def public_key(seed: str) -> str:
    """The public key of a seed."""
    key: bytes = nkeys.from_seed(bytearray(seed, "ascii")).public_key
    return key.decode()


def is_account(text: str) -> bool:
    """Whether a text is the public key of an account."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return False
    key, check = bytearray(raw[:-2]), int.from_bytes(raw[-2:], "little")
    return len(raw) == _KEY_BYTES and raw[0] == NkeyKind.ACCOUNT and nkeys.crc16(key) == check


def token(
    *,
    name: str,
    subject: str,
    issuer: str,
    claims: Mapping[str, Any],
    revision: int = 0,
    expires: int | None = None,
) -> str:
    """A signed token.

    Args:
        name: a name for people.
        subject: public key of the operator, account or user that the token describes.
        issuer: seed of the signing key.
        claims: the content of the `nats` field, with its `type`.
        revision: of what the token says about its subject; servers keep the token of the highest one.
        expires: second since 1970 from which servers refuse the token; None if it lasts.
    """
    body: dict[str, Any] = {
        "iat": _ISSUED_AT + revision,
        "iss": public_key(issuer),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
        **({} if expires is None else {"exp": expires}),
    }
    identity = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
    signed = f"{_encoded(_json(_HEADER))}.{_encoded(_json({**body, 'jti': identity}))}"
    signature: bytes = nkeys.from_seed(bytearray(issuer, "ascii")).sign(signed.encode())
    return f"{signed}.{_encoded(signature)}"


def credentials_file(jwt: str, seed: str) -> str:
    """The text of a user's credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
