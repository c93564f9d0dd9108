"""The two NATS accounts of a job, as the tokens that the server is given.

An account is the one boundary that a server keeps whatever a client asks: a stream's configuration, a consumer's
delivery subject or a reply subject names subjects of its own account. So no job shares an account with another one.

A job has two, because permissions do not cover reply subjects: a user who may send any request to JetStream can name
`$JS.API.STREAM.DELETE.<any stream>` as the reply subject, and the server acts on its own reply. So JetStream and the
streams are in the account `streams`, to which only the operator connects, and the job's workers are users of the
account `roles`, which may call the services in `permissions.SERVICES`. A reply stays in the requester's account, where
nothing acts on it. Of what the account `streams` publishes, the workers hear `permissions.ANNOUNCEMENTS`.

What the account `streams` sends to `report.>`, which is each line of the job's metrics, arrives at the operator under
the account's name. The server puts the name there, and takes no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rljob_core.spec import RLJobSpec
from rljob_core.stream_names import StreamNames
from rljob_operator.nats.credentials import ROLES, STREAMS, JobKeys, user_limits
from rljob_operator.nats.crossings import (
    STREAM_EXPORTS,
    Crossing,
    service_export,
    service_import,
    stream_import,
)
from rljob_operator.nats.jwt import public_key, token
from rljob_operator.nats.permissions import ANNOUNCEMENTS, REPORT, REPORTS, SERVICES, Holder, permissions

UNLIMITED = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": 0,
}
_LEAST_CONNECTIONS, _MOST_CONNECTIONS = 128, 16384
"""Of a job's workers at once."""
SUBSCRIPTIONS = 64
"""Of one connection of a role. A reader of all streams has a dozen: one for its answers, one for each stream."""
_PER_PROCESS = 4
"""Connections for each process that a job may have: also of one that it replaces, of readers and of audits."""
_OPERATORS = 8
"""Connections to the account of a job's streams: of the operator, and of one that replaces it."""
_CONSUMERS = 16384
_RELEASE = 5
"""Of what this module gives to every job: a server that was away keeps the older of two tokens of one revision."""
#: Nanoseconds for which the server remembers whom answers belong to, since the last of them: longer than a pull is
#: silent (workers fetch for 5 s, and ordered readers have heartbeats), and no longer, as every request counts.
_RESPONSES = 30_000_000_000


@dataclass(frozen=True, slots=True)
class JobAccounts:
    """A job's accounts.

    Attributes:
        streams: public key of the account that has the streams.
        tokens: of both accounts, the one with the streams first.
        deletion: the token by which the server deletes both.
    """

    streams: str
    tokens: tuple[str, str]
    deletion: str


def connections_of(spec: RLJobSpec) -> int:
    """Connections that the workers of a job may have at once."""
    ranks = spec.trainer.num_nodes * spec.trainer.num_proc_per_node
    processes = 1 + sum(pool.most_replicas for pool in spec.rollout.pools) + spec.reward.replicas + ranks
    return min(max(_PER_PROCESS * processes, _LEAST_CONNECTIONS), _MOST_CONNECTIONS)


def job_accounts(
    keys: JobKeys,
    *,
    revision: int,
    storage_bytes: int | None = None,
    connections: int = _LEAST_CONNECTIONS,
    restorable: bool = False,
    crossings: Sequence[tuple[str, Crossing]] = (),
    at_site: bool = False,
) -> JobAccounts:
    """The accounts of a job.

    Args:
        keys: of the job.
        revision: grows whenever anything else that is given here changes.
        storage_bytes: that all streams may take together, which the server sets aside; None for as much as it has.
        connections: that the workers may have at once.
        restorable: let the streams be filled from a backup.
        crossings: by public key of a site's border on the same server, what crosses it.
        at_site: whether the server is a site's, which has one border.
    """
    revision += _RELEASE
    holders = [holder for holder in Holder if restorable or holder is not Holder.RESTORER]
    streams, roles = keys.account(STREAMS), keys.account(ROLES)
    names = StreamNames.of_job(namespace=keys.namespace, job=keys.job, uid=keys.uid)
    limits = {
        **UNLIMITED,
        "conn": _OPERATORS,
        "streams": len(names.all_streams),
        "consumer": _CONSUMERS,
        "mem_storage": -1,  # only readers' positions are in memory; the server sets a limit of an account aside
        "disk_storage": -1 if storage_bytes is None else storage_bytes,
    }
    beats = [crossed.beat for _, crossed in crossings if not at_site]
    crossing = [
        claim
        for border, crossed in crossings
        for claim in (crossed.site_imports(border) if at_site else crossed.hub_imports(border))
    ]
    report = {
        "name": REPORT,
        "subject": f"{REPORTS}.{streams}.>",
        "local_subject": f"{REPORT}.>",
        "account": keys.issuer.system_account,
        "type": "service",
    }
    return JobAccounts(
        streams,
        (
            _account(
                keys,
                STREAMS,
                revision,
                limits=limits,
                exports=[
                    *(_export(subject, several=several) for subject, several in SERVICES.items()),
                    {"name": ANNOUNCEMENTS, "subject": ANNOUNCEMENTS, "type": "stream"},
                    *(STREAM_EXPORTS if crossings else ()),
                    *map(service_export, beats),
                ],
                imports=[report, *crossing],
                signing_keys=[public_key(keys.signing(STREAMS))],
            ),
            _account(
                keys,
                ROLES,
                revision,
                limits={**UNLIMITED, "conn": connections},
                imports=[
                    *(service_import(subject, streams) for subject in (*SERVICES, *beats)),
                    stream_import(ANNOUNCEMENTS, streams),
                ],
                signing_keys=[_scope(keys, holder, names) for holder in holders],
            ),
        ),
        token(
            name="delete",
            subject=public_key(keys.issuer.signing_seed),
            issuer=keys.issuer.signing_seed,
            claims={"type": "generic", "accounts": [roles, streams]},
        ),
    )


def _account(keys: JobKeys, name: str, revision: int, **claims: Any) -> str:
    return account_token(
        keys.issuer.signing_seed,
        name=f"{keys.namespace}/{keys.job}/{name}",
        account=keys.account(name),
        revision=revision,
        **claims,
    )


def account_token(issuer: str, *, name: str, account: str, revision: int = 0, **claims: Any) -> str:
    """The token of an account.

    Args:
        issuer: seed that signs it.
        name: for people.
        account: its public key.
        revision: see `jwt.token`.
        claims: what it may do.
    """
    nothing: dict[str, Any] = {"default_permissions": {"pub": {}, "sub": {}}}
    return token(
        name=name,
        subject=account,
        issuer=issuer,
        claims={"type": "account", **nothing, **claims},
        revision=revision,
    )


def _export(subject: str, *, several: bool) -> dict[str, Any]:
    answers = (
        {"response_type": "Stream", "response_threshold": _RESPONSES}
        if several
        else {"response_type": "Singleton"}
    )
    return {"name": subject, "subject": subject, "type": "service", **answers}


def _scope(keys: JobKeys, holder: Holder, names: StreamNames) -> dict[str, Any]:
    """The signing key of a role, and what the users that it signs may do."""
    return {
        "kind": "user_scope",
        "key": public_key(keys.signing(holder)),
        "role": holder.value,
        "template": user_limits(permissions(holder, names, uid=keys.uid), subscriptions=SUBSCRIPTIONS),
    }
