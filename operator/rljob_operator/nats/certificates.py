"""Certificates of the NATS servers, made from the seeds of an installation, as all its other keys are.

Each authority signs one kind of certificate: those of servers for their clients, or those of servers for each other.
Its key follows from a seed by keyed BLAKE2b, and Ed25519 signatures need no randomness. So every run makes the same
files, and nobody but the owner of the seeds can make another one that clients trust.

The certificates do not expire (RFC 5280, 4.1.2.5, has a date for that): a new seed revokes them, like everything else
that follows from it. A site that has an authority of its own supplies the files instead (docs/nats-security.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENTS, ROUTES = "clients", "routes"
"""For whom a server shows its certificate."""

_SINCE = datetime(2026, 1, 1, tzinfo=UTC)
_NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_SERIAL_BYTES = 19  # RFC 5280 admits 20, of a positive number


@lru_cache(maxsize=8)  # every role's credentials have it
def authority(seed: str, purpose: str) -> str:
    """The certificate of an authority (PEM), which every client that trusts it needs."""
    return authority_certificate(_key(seed, purpose, "authority"), _common(purpose))


def server_certificate(seed: str, purpose: str, hosts: Sequence[str]) -> tuple[str, str]:
    """A server's certificate and its key (PEM).

    Args:
        seed: of which the authority's key is made.
        purpose: `CLIENTS` or `ROUTES`.
        hosts: names and addresses by which the server is reached; names may begin with `*.`.
    """
    signing, key = _key(seed, purpose, "authority"), _key(seed, purpose, "server", *hosts)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    if purpose == ROUTES:
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    return signed_certificate(key, "nats", hosts, usages, signing=signing, issuer=_common(purpose))


def signed_certificate(
    key: Ed25519PrivateKey,
    name: str,
    hosts: Sequence[str],
    usages: Sequence[x509.ObjectIdentifier],
    *,
    signing: Ed25519PrivateKey,
    issuer: str,
) -> tuple[str, str]:
    """A certificate and its key (PEM).

    Args:
        key: of which the certificate is.
        name: its common name.
        hosts: its other names.
        usages: what it may be used for.
        signing: the authority's key.
        issuer: the authority's common name.
    """
    certificate = (
        _builder(key, name, issuer=issuer)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .sign(signing, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return _pem(certificate), private


def authority_certificate(key: Ed25519PrivateKey, name: str) -> str:
    """The certificate (PEM) of an authority with that key and common name."""
    return _pem(
        _builder(key, name, issuer=name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                key_cert_sign=True,
                crl_sign=True,
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, None)
    )


def _builder(key: Ed25519PrivateKey, name: str, *, issuer: str) -> x509.CertificateBuilder:
    public: Ed25519PublicKey = key.public_key()
    serial = hashlib.sha256(public.public_bytes_raw()).digest()[:_SERIAL_BYTES]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(int.from_bytes(serial, "big"))
        .not_valid_before(_SINCE)
        .not_valid_after(_NEVER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _common(purpose: str) -> str:
    return f"rljob-nats-{purpose}"


def _key(seed: str, *labels: str) -> Ed25519PrivateKey:
    return derived_key(seed, b"rljob-nats-tls", *labels)


def derived_key(seed: str, purpose: bytes, *labels: str) -> Ed25519PrivateKey:
    """The key that follows from a seed for a purpose (at most 16 bytes) and labels."""
    _, raw = nkeys.decode_seed(seed.encode())
    digest = hashlib.blake2b("/".join(labels).encode(), digest_size=32, key=bytes(raw), person=purpose)
    return Ed25519PrivateKey.from_private_bytes(digest.digest())


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
