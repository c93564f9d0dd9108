"""The NATS credentials of each role of a job, computed from the operator's signing seed and the job's UID.

Nothing is stored: every process of the operator computes the same file for the same role of the same job at any time,
so the role's Secret is immutable, named by its hash, and only ever created and deleted.

Credentials do not expire. A job may run for months, its UID is never used again, and after its streams are deleted its
credentials give access to nothing; an expiry would only add a way for a job to fail. To revoke all credentials, change
the signing seed (docs/nats-security.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

from rljob_core.errors import SpecError
from rljob_core.stream_names import StreamNames
from rljob_operator.nats.jwt import Kind, credentials_file, derived_seed, public_key, token
from rljob_operator.nats.permissions import OPERATOR, Holder, Permissions, permissions

CREDENTIALS_FILE = "user.creds"
"""Key of the credentials in a role's Secret."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Issuer:
    """The signing seed and the accounts that the operator issues credentials with.

    Attributes:
        signing_seed: seed (`SA…`) of the key that both accounts list among their signing keys.
        streams_account: public key of the account that has JetStream.
        roles_account: public key of the account whose users are the jobs' roles.
    """

    signing_seed: str
    streams_account: str
    roles_account: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the content of the operator's own Secret."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """The content of the operator's own Secret."""
        return json.dumps(asdict(self), indent=2) + "\n"


@lru_cache(maxsize=64)  # one reconcile needs each of them several times
def job_credentials(issuer: Issuer, holder: Holder, *, namespace: str, job: str, uid: str) -> str:
    """The credentials file of one role of one job.

    Raises:
        SpecError: a name has a character that separates or matches parts of a NATS subject.
    """
    for path, part in (("metadata.namespace", namespace), ("metadata.name", job), ("metadata.uid", uid)):
        if not _TOKEN.fullmatch(part):
            raise SpecError(path, f"{part!r} cannot be part of a NATS subject: use letters, digits and '-'")
    names = StreamNames.of_job(namespace=namespace, job=job, uid=uid)
    return _user(
        issuer,
        name=f"{namespace}/{job}/{holder}",
        label=f"{namespace}/{job}/{uid}/{holder}",
        # Streams are created in the account that holds them; every other role connects to the roles' account.
        account=issuer.streams_account if holder is Holder.STREAMS else issuer.roles_account,
        granted=permissions(holder, names, uid=uid),
    )


def operator_credentials(issuer: Issuer) -> str:
    """The credentials file of the operator itself."""
    return _user(issuer, name="operator", label="operator", account=issuer.streams_account, granted=OPERATOR)


def _user(issuer: Issuer, *, name: str, label: str, account: str, granted: Permissions) -> str:
    seed = derived_seed(Kind.USER, issuer.signing_seed, label)
    claims: Mapping[str, Any] = {
        "type": "user",
        "issuer_account": account,
        "pub": {"allow": list(granted.publish), "deny": list(granted.publish_denied)},
        "sub": {"allow": list(granted.subscribe)},
        "subs": -1,
        "data": -1,
        "payload": -1,
        "allowed_connection_types": ["STANDARD"],
    }
    jwt = token(name=name, subject=public_key(seed), issuer=issuer.signing_seed, claims=claims)
    return credentials_file(jwt, seed)
