"""`python -m rljob_operator.nats.setup` creates the five Secrets of a NATS installation, if they are missing.

A Job of the installation runs it, under its own service account, which may create Secrets in its namespace and read
these:

    rljob-nats-seeds ──► rljob-nats-accounts      mounted by nats-server
                    ├──► rljob-nats-certificate   mounted by nats-server
                    ├──► rljob-nats-routes        mounted by each nats-server of a cluster
                    └──► rljob-nats-issuer        mounted by the operator

Only the seeds are random. The first run that creates their Secret decides them, and any other run reads them from it.
The other Secrets are computed from the seeds alone. So a run may be killed at any point, repeated, or run beside
another one, and the Secrets always fit together. No run changes or deletes a Secret. A Secret that does not follow from
the seeds was made by a person, and the run fails with a message that says so. Only `rljob-nats-routes` may be
anyone's: nothing else depends on it. And `user.creds` in `rljob-nats-issuer` may be of another release: it is for
people, as the operator makes its own credentials.

If the accounts and the issuer exist without seeds, a person supplied both, and the run does nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.login import KubeLogin, LoginError
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.nats.accounts import (
    ISSUER_SECRET,
    ROUTES_SECRET,
    SEEDS_SECRET,
    SERVER_SECRET,
    Seeds,
    secrets,
    seeds_of,
    seeds_secret,
)
from rljob_operator.nats.credentials import CREDENTIALS_FILE


class SetupError(Exception):
    """The existing Secrets do not fit together, and a person has to decide which to keep."""


async def set_up(
    api: KubeApi, namespace: str, *, random: Callable[[int], bytes] = os.urandom
) -> tuple[str, ...]:
    """Create the Secrets that are missing, and return their names.

    Raises:
        SetupError: the existing Secrets do not fit together.
        ApiError: the API server refused a request or gave no answer; running it again is safe.
    """
    made: list[str] = []
    stored = await api.get(_ref(namespace, SEEDS_SECRET))
    if stored is None:
        supplied = [
            n for n in (SERVER_SECRET, ISSUER_SECRET) if await api.get(_ref(namespace, n)) is not None
        ]
        # Another run may have made all since.
        stored = await api.get(_ref(namespace, SEEDS_SECRET)) if supplied else None
        if stored is None and len(supplied) == 2:
            return ()
        if stored is None and supplied:
            (missing,) = {SERVER_SECRET, ISSUER_SECRET} - set(supplied)
            raise SetupError(
                f"Secret {supplied[0]} exists without {SEEDS_SECRET}: supply {missing} too, "
                f"or the seeds that it was made from, or delete it"
            )
    if stored is None:
        new = seeds_secret(Seeds.complete({}, random), namespace=namespace)
        stored = await _created(api, new, made)
    try:
        seeds = seeds_of(stored)
    except ValueError as error:
        raise SetupError(f"Secret {SEEDS_SECRET}: {error}") from error
    for wanted in secrets(seeds, namespace=namespace):
        found = await _created(api, wanted, made)
        name = wanted["metadata"]["name"]
        if name != ROUTES_SECRET and _decisive(found) != _decisive(wanted):
            raise SetupError(
                f"Secret {name} is not what this version makes of {SEEDS_SECRET}: delete it and run this again, "
                f"or, if you supply it yourself, delete {SEEDS_SECRET}"
            )
    return tuple(made)


def _decisive(secret: Manifest) -> dict[str, str]:
    """What of a Secret must follow from the seeds: not the credentials in it, which another release may have made."""
    return {name: text for name, text in (secret.get("data") or {}).items() if name != CREDENTIALS_FILE}


async def _created(api: KubeApi, manifest: Manifest, made: list[str]) -> Manifest:
    """Create a Secret, and return it as stored: this one, or the one that another run created first."""
    ref = Ref.of(manifest)
    try:
        created = await api.create(manifest)
    except ApiError as error:
        if error.status != 409:
            raise
        there = await api.get(ref)
        if there is None:
            raise ApiError(409, "Conflict", f"{ref} was deleted while it was being read") from error
        return there
    made.append(ref.name)
    return created


def _ref(namespace: str, name: str) -> Ref:
    return Ref("Secret", namespace, name)


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Create the Secrets in the namespace that RLJOB_NAMESPACE names; exit code 2 if a person has to decide."""
    namespace = environment.get("RLJOB_NAMESPACE", "")
    if not namespace:
        return _failed("RLJOB_NAMESPACE is not set: give the namespace of NATS and the operator", 2)

    async def run() -> tuple[str, ...]:
        login = KubeLogin()
        await login.configuration()  # its error says what is missing
        api = KubeApi(login)
        try:
            return await set_up(api, namespace)
        finally:
            await api.close()

    try:
        made = asyncio.run(run())
    except SetupError as error:
        return _failed(str(error), 2)
    except ApiError as error:
        return _failed(f"the API server says: {error}", 1)
    except LoginError as error:
        return _failed(str(error), 1)
    print(f"made {', '.join(made)}" if made else "all Secrets are there; nothing made")  # noqa: T201
    return 0


def _failed(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
