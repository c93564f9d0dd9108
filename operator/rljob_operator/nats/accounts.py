"""What a NATS installation begins with, computed from seeds by `rljob nats-init` or by a Job in the cluster.

The server knows one account from its configuration: `system`, whose users create and delete all others. The operator is
one of them, and gives each job accounts of its own (`job_accounts`), which the server keeps in a folder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.certificates import CLIENTS, ROUTES, authority, server_certificate
from rljob_operator.nats.credentials import (
    CREDENTIALS_FILE,
    Issuer,
    operator_credentials,
    system_signing_seed,
)
from rljob_operator.nats.job_accounts import UNLIMITED, account_token
from rljob_operator.nats.jwt import (
    NkeyKind,
    checked_seed,
    is_account,
    public_key,
    seed_of,
    token,
)
from rljob_operator.nats.permissions import REPORTS
from rljob_operator.nats.site_accounts import SiteAccounts

SEEDS_SECRET = "rljob-nats-seeds"  # noqa: S105 a name
"""Secret with the seeds, from which the other Secrets are computed; no running pod mounts it."""
SERVER_SECRET = "rljob-nats-accounts"  # noqa: S105 a name
"""Secret with the part of the server's configuration that names the accounts."""
ISSUER_SECRET = "rljob-nats-issuer"  # noqa: S105 a name
"""Secret of the operator: its own credentials, and the seeds for those of the jobs."""
CERTIFICATE_SECRET = "rljob-nats-certificate"  # noqa: S105 a name
"""Secret with the certificate that servers show their clients, and its key."""
ROUTES_SECRET = "rljob-nats-routes"  # noqa: S105 a name
"""Secret with the certificate by which the servers of a cluster know each other, and its key."""
BORDER_SECRET = "rljob-nats-border"  # noqa: S105 a name
"""At a site: the account of its server that is connected with the hub's."""
HUB_SERVICE = "nats-hub"
"""Name of the Service by which a site's server reaches the hub's, whatever the hub's address is."""
SEEDS_FILE = "seeds.json"
ACCOUNTS_FILE = "accounts.conf"
ISSUER_FILE = "issuer.json"
#: Keys of the Secrets with certificates, as cert-manager names them.
_CERTIFICATE_FILES = ("ca.crt", "tls.crt", "tls.key")

ACCOUNTS_FOLDER = "/data/accounts"
"""Where the server keeps the jobs' accounts."""

_MOST_SERVERS = 5
#: Position of the token of the sender's account in `permissions.REPORTS`.
_SENDER = len(f"{REPORTS}.*".split("."))


@dataclass(frozen=True, slots=True)
class Seeds:
    """The secret seeds from which everything else is computed; running programs only get `signing` and `accounts`.

    Attributes:
        system: of the account whose users create and delete accounts; or its public key, where the seed is gone.
    """

    operator: str
    system: str
    accounts: str
    signing: str

    @classmethod
    def complete(cls, known: Mapping[str, str], random: Callable[[int], bytes]) -> Self:
        """The known seeds, and new seeds for the other fields.

        Args:
            known: seeds by field name; to change the signing key, leave its seed out.
            random: returns the given number of random bytes.

        Raises:
            ValueError: a known seed is not a seed of its kind.
        """
        seeds = {}
        for name in cls.__slots__:
            kind = NkeyKind.OPERATOR if name in {"operator", "signing"} else NkeyKind.ACCOUNT
            if name == "system" and is_account(known.get(name, "")):
                seeds[name] = known[name]
            else:
                seeds[name] = checked_seed(kind, known[name]) if name in known else seed_of(kind, random(32))
        return cls(**seeds)

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a seeds file.

        Raises:
            ValueError: it is not a seeds file, or a seed is missing.
        """
        known = known_seeds(text)
        if missing := sorted(set(cls.__slots__) - known.keys()):
            raise ValueError(f"lacks {', '.join(missing)}: `rljob nats-init` adds what is missing")
        return cls.complete(known, bytes)

    def text(self) -> str:
        """The content of a seeds file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def known_seeds(text: str) -> dict[str, str]:
    """The seeds in a seeds file, which need not be complete.

    Raises:
        ValueError: it is not a seeds file.
    """
    found = json.loads(text)
    if not isinstance(found, dict) or not all(isinstance(seed, str) for seed in found.values()):
        raise ValueError("is not a JSON object of names and seeds")
    if strange := sorted(found.keys() - set(Seeds.__slots__)):
        raise ValueError(f"{', '.join(strange)}: unknown; known are {', '.join(Seeds.__slots__)}")
    return found


def _account(seed: str) -> str:
    """The public key of an account, which may stand in place of its seed: nothing is signed with that."""
    return seed if is_account(seed) else public_key(seed)


def issuer(seeds: Seeds) -> Issuer:
    """The part of the seeds that the operator gets."""
    return Issuer(seeds.signing, seeds.accounts, _account(seeds.system))


def server_config(seeds: Seeds, *, folder: str = ACCOUNTS_FOLDER) -> str:
    """The part of a nats-server's configuration that makes it authenticate clients; it contains no secret.

    Args:
        seeds: of the installation.
        folder: where the server keeps the jobs' accounts; it outlives the server.
    """
    system = _account(seeds.system)
    operator = token(
        name="rljob",
        subject=public_key(seeds.operator),
        issuer=seeds.operator,
        claims={
            "type": "operator",
            "system_account": system,
            "signing_keys": [public_key(seeds.signing)],
        },
    )
    account = account_token(
        seeds.operator,
        name="system",
        account=system,
        limits=UNLIMITED,
        exports=[
            {
                "name": "reports",
                "subject": f"{REPORTS}.*.>",
                "type": "service",
                "response_type": "Singleton",
                "account_token_position": _SENDER,
            }
        ],
        signing_keys=[public_key(system_signing_seed(seeds.signing))],
    )
    return (
        f"operator: {json.dumps(operator)}\nsystem_account: {system}\n"
        f'resolver {{ type: full, dir: {json.dumps(folder)}, allow_delete: true, interval: "2m" }}\n'
        f"resolver_preload {{\n  {system}: {json.dumps(account)}\n}}\n"
    )


def seeds_secret(seeds: Seeds, *, namespace: str) -> Manifest:
    """The Secret that keeps the seeds in the cluster."""
    return _secret(SEEDS_SECRET, namespace, {SEEDS_FILE: seeds.text()})


def seeds_of(secret: Manifest) -> Seeds:
    """The seeds in a Secret.

    Raises:
        ValueError: the Secret contains no seeds.
    """
    encoded = (secret.get("data") or {}).get(SEEDS_FILE)
    if encoded is None:
        raise ValueError(f"has no {SEEDS_FILE}")
    return Seeds.read(base64.b64decode(encoded).decode())


def secrets(
    seeds: Seeds, *, namespace: str, folder: str = ACCOUNTS_FOLDER, hosts: Sequence[str] = ()
) -> list[Manifest]:
    """The Secrets that the NATS installation and the operator mount.

    Args:
        seeds: of the installation.
        namespace: of NATS and the operator.
        folder: see `server_config`.
        hosts: names and addresses of the servers, besides those in the cluster and, for clients, of the loopback
            interface.
    """
    granted = issuer(seeds)
    shown = certificate(seeds, namespace=namespace, hosts=hosts)
    routes = [f"nats-{number}.nats-routes" for number in range(_MOST_SERVERS)]
    return [
        _secret(SERVER_SECRET, namespace, {ACCOUNTS_FILE: server_config(seeds, folder=folder)}),
        _secret(
            ISSUER_SECRET,
            namespace,
            {ISSUER_FILE: granted.text(), CREDENTIALS_FILE: operator_credentials(granted)},
        ),
        _secret(CERTIFICATE_SECRET, namespace, _files(authority(seeds.signing, CLIENTS), *shown)),
        # From a seed that stays: servers that restart one after the other must know each other.
        _secret(
            ROUTES_SECRET,
            namespace,
            _files(
                authority(seeds.operator, ROUTES),
                *server_certificate(seeds.operator, ROUTES, [*routes, *hosts]),
            ),
        ),
    ]


def border_secret(issuer: Issuer, site: str, *, namespace: str) -> Manifest:
    """The Secret from which a site's server knows which of its accounts crosses the link (`SiteAccounts`)."""
    border = SiteAccounts(issuer, site, at_site=True).border
    return _secret(BORDER_SECRET, namespace, {"border.conf": f"BORDER: {border}\n"})


def certificate(seeds: Seeds, *, namespace: str, hosts: Sequence[str] = ()) -> tuple[str, str]:
    """The certificate that servers show their clients, and its key (PEM); arguments as of `secrets`."""
    names = ["nats", f"nats.{namespace}", f"nats.{namespace}.svc", f"nats.{namespace}.svc.cluster.local"]
    known = [*names, *(f"*.{name}" for name in names), HUB_SERVICE, "localhost", "127.0.0.1", "::1"]
    return server_certificate(seeds.signing, CLIENTS, [*known, *hosts])


def _files(*texts: str) -> dict[str, str]:
    return dict(zip(_CERTIFICATE_FILES, texts, strict=True))


def _secret(name: str, namespace: str, files: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "rljob", "app.kubernetes.io/component": "nats"},
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }
