"""The NATS accounts of an installation, computed from seeds by `rljob nats-init` or by a Job in the cluster.

There are two accounts because permissions do not cover reply subjects: a user who may send any request to JetStream can
name `$JS.API.STREAM.DELETE.<any stream>` as the reply subject, and the server acts on its own reply. So JetStream and
all streams are in the account `streams`, to which only the operator and the creators of streams connect, and the roles
of the jobs are users of the account `roles`, which may call the services in `permissions.SERVICES`. A reply stays in
the requester's account, where nothing acts on it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.credentials import CREDENTIALS_FILE, Issuer, operator_credentials
from rljob_operator.nats.jwt import Kind, checked_seed, public_key, seed_of, token
from rljob_operator.nats.permissions import SERVICES

SEEDS_SECRET = "rljob-nats-seeds"  # noqa: S105 a name
"""Secret with the seeds, from which the other Secrets are computed; no running pod mounts it."""
SERVER_SECRET = "rljob-nats-accounts"  # noqa: S105 a name
"""Secret with the part of the server's configuration that names the accounts."""
ISSUER_SECRET = "rljob-nats-issuer"  # noqa: S105 a name
"""Secret of the operator: its own credentials, and the signing seed for those of the jobs."""
SEEDS_FILE = "seeds.json"
ACCOUNTS_FILE = "accounts.conf"
ISSUER_FILE = "issuer.json"

_UNLIMITED = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
_JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
#: Bytes of a line of the protocol. A client sends its token in one, and a coordinator's, which names every stream
#: that it works on, passes the default of 4 KB; the longest names that Kubernetes allows make 15 KB of it.
_CONTROL_LINE = 32 << 10
#: Nanoseconds for which the server remembers whom answers belong to, since the last of them: longer than a pull is
#: silent (workers fetch for 5 s, and ordered readers have heartbeats), and no longer, as every request counts.
_RESPONSES = 30_000_000_000


@dataclass(frozen=True, slots=True)
class Seeds:
    """The secret seeds from which everything else is computed; running programs only get `signing`."""

    operator: str
    system: str
    streams: str
    roles: str
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
            kind = Kind.OPERATOR if name == "operator" else Kind.ACCOUNT
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
        raise ValueError("is no object of names and seeds")
    if strange := sorted(found.keys() - set(Seeds.__slots__)):
        raise ValueError(f"{', '.join(strange)}: unknown; known are {', '.join(Seeds.__slots__)}")
    return found


def issuer(seeds: Seeds) -> Issuer:
    """The part of the seeds that the operator gets."""
    return Issuer(seeds.signing, public_key(seeds.streams), public_key(seeds.roles))


def server_config(seeds: Seeds) -> str:
    """The part of a nats-server's configuration that makes it authenticate clients; it contains no secret."""
    accounts = {
        public_key(seed): _account(seeds, name, seed, **claims)
        for name, seed, claims in (
            ("system", seeds.system, {"limits": _UNLIMITED}),
            (
                "streams",
                seeds.streams,
                {
                    "limits": {**_UNLIMITED, **_JETSTREAM},
                    "exports": _exports(),
                    "signing_keys": [public_key(seeds.signing)],
                },
            ),
            (
                "roles",
                seeds.roles,
                {
                    "limits": _UNLIMITED,
                    "imports": _imports(public_key(seeds.streams)),
                    "signing_keys": [public_key(seeds.signing)],
                },
            ),
        )
    }
    system = public_key(seeds.system)
    operator = token(
        name="rljob",
        subject=public_key(seeds.operator),
        issuer=seeds.operator,
        claims={"type": "operator", "system_account": system},
    )
    preload = "".join(f"  {key}: {json.dumps(jwt)}\n" for key, jwt in accounts.items())
    return (
        f"operator: {json.dumps(operator)}\nsystem_account: {system}\n"
        f"resolver: MEMORY\nresolver_preload {{\n{preload}}}\n"
        f"max_control_line: {_CONTROL_LINE}\n"
    )


def _account(seeds: Seeds, name: str, seed: str, **claims: Any) -> str:
    return token(
        name=name,
        subject=public_key(seed),
        issuer=seeds.operator,
        claims={"type": "account", "default_permissions": {"pub": {}, "sub": {}}, **claims},
    )


def _exports() -> list[dict[str, Any]]:
    return [
        {
            "name": subject,
            "subject": subject,
            "type": "service",
            **(
                {"response_type": "Stream", "response_threshold": _RESPONSES}
                if several
                else {"response_type": "Singleton"}
            ),
        }
        for subject, several in SERVICES.items()
    ]


def _imports(account: str) -> list[dict[str, Any]]:
    return [
        {"name": subject, "subject": subject, "account": account, "type": "service"} for subject in SERVICES
    ]


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


def secrets(seeds: Seeds, *, namespace: str) -> list[Manifest]:
    """The Secrets that the NATS installation and the operator mount."""
    granted = issuer(seeds)
    return [
        _secret(SERVER_SECRET, namespace, {ACCOUNTS_FILE: server_config(seeds)}),
        _secret(
            ISSUER_SECRET,
            namespace,
            {ISSUER_FILE: granted.text(), CREDENTIALS_FILE: operator_credentials(granted)},
        ),
    ]


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
