"""The NATS credentials of each role of a job, computed from the operator's signing seed and the job's UID.

Credentials have two parts. The seed of the role's user is secret and stays the same; the role's Secret, which is
immutable and named by its hash, has it. The token is no secret, as the server also asks for a proof that the client has
the seed; it expires, and the operator renews it in a ConfigMap (`token_times`). So the operator needs no right to read
or change any Secret. Nothing else is stored: every process of the operator computes the same.

A role's token says who the role is and nothing else. What it may do is in the token of its account, beside the key that
signed the role's token (a *scoped* signing key; `job_accounts`). So credentials stay small, and a role's key signs
nothing but users of that role.

To revoke the credentials of one job at once, raise its generation; to revoke all, change the signing seed
(docs/nats-security.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.nats.jwt import NkeyKind, credentials_file, derived_seed, public_key, token
from rljob_operator.nats.permissions import JOB_OPERATOR, OPERATOR, Holder, Permissions

CREDENTIALS_FILE = "user.creds"
"""Key of the credentials in a role's Secret; those that the operator makes have no token."""

ROLES, STREAMS = "roles", "streams"
"""The two accounts of a job: of its workers, and of its streams."""

_SITE_OPERATOR = Permissions(
    (*JOB_OPERATOR.publish, "$JS.API.STREAM.DELETE.*", "$JS.API.CONSUMER.NAMES.*"), JOB_OPERATOR.subscribe
)
"""A site's operator makes copies of the hub's streams again, and the consumers that the hub reads by."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
#: In a Secret, in place of the token: nats-py reads a file without one forever, and the server refuses this one.
_NO_TOKEN = "it-is-in-the-ConfigMap"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Issuer:
    """What the operator makes accounts and credentials from.

    Attributes:
        signing_seed: seed (`SO…`) of the operator's signing key. Everything that is signed follows from it, so that
            another one revokes everything.
        accounts_seed: seed (`SA…`) from which the keys that name the jobs' accounts are derived. It stays: an account
            of another name has none of the streams.
        system_account: public key of the account whose users may create and delete accounts.
        authority: certificates (PEM) of those who sign the servers' certificates, if it is not the one of the seeds;
            a setting of the operator's, no part of its Secret.
    """

    signing_seed: str
    accounts_seed: str
    system_account: str
    authority: str = ""

    @property
    def trusted(self) -> str:
        """Certificates of those who sign the servers' certificates, which the roles' credentials have (PEM)."""
        if self.authority:
            return self.authority
        # It loads `cryptography`, which an operator that signs no certificates does not need.
        from rljob_operator.nats.certificates import CLIENTS, authority

        return authority(self.signing_seed, CLIENTS)

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the content of the operator's own Secret."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """The content of the operator's own Secret."""
        stored = {name: value for name, value in asdict(self).items() if name != "authority"}
        return json.dumps(stored, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job's accounts.

    Args:
        issuer: of the installation.
        namespace: the job's.
        job: its name.
        uid: its UID.
        generation: of its roles' credentials. The job's accounts name only the keys of one generation, so that the
            server refuses those of all others.

    Raises:
        SpecError: a name has a character that separates or matches parts of a NATS subject.
    """

    issuer: Issuer
    namespace: str
    job: str
    uid: str
    generation: int = 0

    def __post_init__(self) -> None:
        parts = {"namespace": self.namespace, "name": self.job, "uid": self.uid}
        for name, part in parts.items():
            if not _TOKEN.fullmatch(part):
                raise SpecError(
                    f"metadata.{name}",
                    f"{part!r} cannot be part of a NATS subject: use letters, digits and '-'",
                )

    @classmethod
    def of(cls, job: RLJob, issuer: Issuer) -> Self:
        """The keys of a job's accounts, and of the generation of credentials that its spec asks for."""
        metadata, generation = job.metadata, job.spec.nats.credentials_generation
        return cls(issuer, metadata.namespace, metadata.name, metadata.uid or "", generation)

    def account(self, name: str) -> str:
        """Public key of the account `streams` or `roles`."""
        return public_key(derived_seed(NkeyKind.ACCOUNT, self.issuer.accounts_seed, self._label(name)))

    def signing(self, holder: str) -> str:
        """Seed of the key that signs the tokens of a role, or of the operator in the account `streams`."""
        return derived_seed(NkeyKind.ACCOUNT, self.issuer.signing_seed, self._credentials_label(holder))

    def user(self, holder: str) -> str:
        """Seed of a role's user, or the operator's in the account `streams`."""
        return derived_seed(NkeyKind.USER, self.issuer.signing_seed, self._credentials_label(holder))

    def _credentials_label(self, holder: str) -> str:
        # The operator's own stay: it connects by them before it gives the server the accounts of a new generation.
        if self.generation == 0 or holder == STREAMS:
            return self._label(holder)
        return self._label(f"{holder}/{self.generation}")

    def _label(self, name: str) -> str:
        return f"{self.namespace}/{self.job}/{self.uid}/{name}"


@lru_cache(maxsize=64)  # one reconcile needs each of them several times
def secret_credentials(keys: JobKeys, holder: Holder) -> str:
    """The secret part of the credentials of one role of one job, and the certificates by which it knows the server."""
    return credentials_file(_NO_TOKEN, keys.user(holder)) + keys.issuer.trusted


@lru_cache(maxsize=64)  # one reconcile needs each of them several times
def job_token(keys: JobKeys, holder: Holder, expires: int | None = None) -> str:
    """The token of one role of one job; `expires` as of `jwt.token`."""
    return token(
        name=f"{keys.namespace}/{keys.job}/{holder}",
        subject=public_key(keys.user(holder)),
        issuer=keys.signing(holder),
        claims={"type": "user", "issuer_account": keys.account(ROLES)},
        expires=expires,
    )


def stream_credentials(keys: JobKeys, *, at_site: bool = False) -> str:
    """The credentials with which the operator, or that of a site, connects to the account of a job's streams."""
    return user_credentials(
        name="operator",
        seed=keys.user(STREAMS),
        signing=keys.signing(STREAMS),
        account=keys.account(STREAMS),
        granted=_SITE_OPERATOR if at_site else JOB_OPERATOR,
    )


def operator_credentials(issuer: Issuer) -> str:
    """The credentials file with which the operator creates and deletes accounts, and receives the jobs' metrics."""
    return user_credentials(
        name="operator",
        seed=derived_seed(NkeyKind.USER, issuer.signing_seed, "operator"),
        signing=system_signing_seed(issuer.signing_seed),
        account=issuer.system_account,
        granted=OPERATOR,
    )


def system_signing_seed(signing_seed: str) -> str:
    """Seed of the key that signs the tokens of the system account's users."""
    return derived_seed(NkeyKind.ACCOUNT, signing_seed, "system")


def user_limits(
    granted: Permissions, *, kinds: Sequence[str] = ("STANDARD",), subscriptions: int = -1
) -> dict[str, Any]:
    """What a user, or a scoped signing key's users, may do, as in a token.

    Args:
        granted: subjects.
        kinds: of their connections.
        subscriptions: that one connection may have; -1 for any number, each of which takes 3 KB of the server's memory.
    """
    return {
        "pub": {"allow": list(granted.publish)},
        "sub": {"allow": list(granted.subscribe)},
        "subs": subscriptions,
        "data": -1,
        "payload": -1,
        "allowed_connection_types": list(kinds),
    }


def user_credentials(
    *,
    name: str,
    seed: str,
    signing: str,
    account: str,
    granted: Permissions,
    kinds: Sequence[str] = ("STANDARD",),
) -> str:
    """The credentials file of a user.

    Args:
        name: for people.
        seed: of the user.
        signing: seed that signs the user's token, a signing key of the account.
        account: public key of the account.
        granted: what the user may do.
        kinds: of connections that the user may make.
    """
    claims = {"type": "user", "issuer_account": account, **user_limits(granted, kinds=kinds)}
    jwt = token(name=name, subject=public_key(seed), issuer=signing, claims=claims)
    return credentials_file(jwt, seed)
