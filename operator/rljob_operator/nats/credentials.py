"""PURE. A role's NATS credentials, which follow from the operator's signing seed and the job's UID.

Nothing is stored: any replica of the operator, at any time, renders the same file for the same role of the same job,
so its Secret is immutable, named by its hash, and only ever created and deleted.

They do not expire. A job may run for months, its UID never comes again, and once its streams are deleted there is
nothing left that they open; an expiry would only add a way for a job to die. To take all of them back, change the
signing seed (docs/nats-security.md).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames
from rljob_operator.children.metadata import child_metadata
from rljob_operator.cluster.port import Manifest
from rljob_operator.nats.jwt import Kind, credentials_file, derived_seed, public_key, token
from rljob_operator.nats.permissions import OPERATOR, Holder, Permissions, permissions

CREDENTIALS_FILE = "user.creds"
"""Key of a role's Secret, and name of the file when it is mounted."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Issuer:
    """What the operator needs to make credentials.

    Attributes:
        signing_seed: (`SA…`) of the key that both accounts name as one of their signing keys.
        streams_account: public key of the account that has JetStream.
        roles_account: public key of the account whose users are the jobs' roles.
    """

    signing_seed: str
    streams_account: str
    roles_account: str

    @classmethod
    def read(cls, text: str) -> Self:
        """From the operator's own Secret."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """For the operator's own Secret."""
        return json.dumps(asdict(self), indent=2) + "\n"


@lru_cache(maxsize=64)  # each is asked for several times in one reconcile
def job_credentials(issuer: Issuer, holder: Holder, *, namespace: str, job: str, uid: str) -> str:
    """The credentials file of one role of one job.

    Raises:
        SpecError: a name could be taken for several, or for a wildcard.
    """
    for path, part in (("metadata.namespace", namespace), ("metadata.name", job), ("metadata.uid", uid)):
        if not _TOKEN.fullmatch(part):
            raise SpecError(path, f"{part!r} cannot be part of a NATS subject: use letters, digits and '-'")
    names = StreamNames.of_job(namespace=namespace, job=job, uid=uid)
    return _user(
        issuer,
        name=f"{namespace}/{job}/{holder}",
        label=f"{namespace}/{job}/{uid}/{holder}",
        # Streams are made where they are; every other role comes in through the roles' account.
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


def secret_name(job: RLJob, holder: Holder, issuer: Issuer) -> str:
    """Name of the Secret with a role's credentials: it changes with its contents, which never do."""
    text = _credentials_of(job, holder, issuer)
    return f"{job.metadata.name}-nats-{holder}-{sha256(text.encode()).hexdigest()[:10]}"


def credentials_secret(job: RLJob, holder: Holder, issuer: Issuer) -> Manifest:
    """The Secret that holds a role's credentials."""
    text = _credentials_of(job, holder, issuer)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(job, secret_name(job, holder, issuer), None),
        "type": "Opaque",
        "immutable": True,
        "data": {CREDENTIALS_FILE: base64.b64encode(text.encode()).decode()},
    }


def _credentials_of(job: RLJob, holder: Holder, issuer: Issuer) -> str:
    metadata = job.metadata
    return job_credentials(
        issuer, holder, namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or ""
    )
