"""A cluster's certificate authority, and kubeconfig files for the identities that Kubernetes knows by certificate.

Every component has its own user, as in a cluster that is set up by kubeadm, so that RBAC and the node authorizer
are in force for all of them and a test of permissions means something.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=30)  # of a throw-away cluster


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs everything in one folder: `ca.crt` for all to trust, `<name>.crt` and `<name>.key`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("rljob-test-ca")
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        signing = (
            _unsigned(self._name, self._name, self._key)
            .add_extension(constraints, critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(signing.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self, name: str, *, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> KeyPair:
        """A certificate for a client, and for a server too where there are `hosts` (names or addresses)."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _unsigned(_name(user, groups), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
        )
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            alternatives = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(alternatives, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        certificate = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def kubeconfig(self, name: str, *, server: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write `<name>.kubeconfig`: that user's certificate, and where the API server is."""
        pair = self.issue(name, user=user, groups=groups)
        path = self._folder / f"{name}.kubeconfig"
        write_kubeconfig(path, server=server, authority=self.certificate, pair=pair)
        return path

    def service_account_key(self) -> KeyPair:
        """The key pair that service accounts' tokens are signed with; no certificate, its public half alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = KeyPair(self._folder / "service-accounts.pub", self._folder / "service-accounts.key")
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        pair.certificate.write_bytes(public)
        _write_key(pair.key, key)
        return pair


def write_kubeconfig(path: Path, *, server: str, authority: Path, pair: KeyPair) -> None:
    """A kubeconfig (JSON, which is YAML too) with all certificates inside: it can be copied anywhere."""

    def named(kind: str, **content: str) -> list[dict[str, object]]:
        return [{"name": "rljob-test", kind: content}]

    user = {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rljob-test",
        "contexts": named("context", cluster="rljob-test", user="rljob-test"),
        "clusters": named("cluster", **cluster),
        "users": named("user", **user),
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    """Kubernetes reads the user from the common name and the groups from the organizations."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )
