"""`python -m rljob_operator.nats.setup` creates the Secrets of a NATS installation, if they are missing.

A Job of the installation runs it, under its own service account, which may create Secrets in its namespace, read these,
and delete the first:

    rljob-nats-seeds ──► rljob-nats-accounts      mounted by nats-server
                    ├──► rljob-nats-certificate   mounted by nats-server
                    ├──► rljob-nats-routes        mounted by each nats-server of a cluster
                    └──► rljob-nats-issuer        mounted by the operator
                             └──► rljob-nats-border, at a site: mounted by nats-server

Only the seeds are random. The first run that creates their Secret decides them, and any other run reads them from it.
The other Secrets are computed from the seeds alone. So a run may be killed at any point, repeated, or run beside
another one, and the Secrets always fit together. Once all are there, the run deletes the seeds, if a run has made them:
nothing needs them any more (`Seeds`). No run changes or deletes anything else. A Secret that does not follow from
the seeds was made by a person, and the run fails with a message that says so. Only `rljob-nats-routes` may be
anyone's: nothing else depends on it. And `user.creds` in `rljob-nats-issuer` may be of another release: it is for
people, as the operator makes its own credentials.

If the accounts and the issuer exist without seeds, a run or a person has made both, and the run makes certificates that
are missing, from the issuer.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Callable, Mapping

from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.login import KubeLogin, LoginError
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.nats.accounts import (
    BORDER_SECRET,
    CERTIFICATE_SECRET,
    ISSUER_FILE,
    ISSUER_SECRET,
    ROUTES_SECRET,
    SEEDS_SECRET,
    SERVER_SECRET,
    Seeds,
    border_secret,
    secrets,
    seeds_of,
    seeds_secret,
)
from rljob_operator.nats.credentials import CREDENTIALS_FILE, Issuer

TRANSIENT = "rljob.dev/until-setup"
"""Annotation of seeds that a run has made, and that are deleted once the other Secrets are there."""


class SetupError(Exception):
    """The existing Secrets do not fit together, and a person has to decide which to keep."""


async def set_up(
    api: KubeApi, namespace: str, *, site: str = "", random: Callable[[int], bytes] = os.urandom
) -> tuple[str, ...]:
    """Create the Secrets that are missing, and return their names.

    Args:
        api: of the cluster.
        namespace: of NATS and the operator.
        site: name of the Site that the cluster is; empty for a hub.
        random: makes seeds.

    Raises:
        SetupError: the existing Secrets do not fit together.
        ApiError: the API server refused a request or gave no answer; running it again is safe.
    """
    made: list[str] = []
    await _set_up_server(api, namespace, random, made)
    if site:
        wanted = border_secret(await _issuer(api, namespace), site, namespace=namespace)
        if _decisive(await _created(api, wanted, made)) != _decisive(wanted):
            raise SetupError(
                f"Secret {BORDER_SECRET} is of another site than {site}: delete it and run this again"
            )
    return tuple(name for name in made if name != SEEDS_SECRET)


async def _set_up_server(
    api: KubeApi, namespace: str, random: Callable[[int], bytes], made: list[str]
) -> None:
    stored = await _stored_seeds(api, namespace, random, made)
    if stored is None:
        await _add_certificates(api, namespace, random, made)
        return
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
    if TRANSIENT in (stored["metadata"].get("annotations") or {}):
        await _delete(api, stored)


async def _stored_seeds(
    api: KubeApi, namespace: str, random: Callable[[int], bytes], made: list[str]
) -> Manifest | None:
    """The Secret with the seeds, which may be a new one; None if what follows from them is there without it.

    Raises:
        SetupError: a part of what follows from them is there without them.
    """
    while (stored := await api.get(_ref(namespace, SEEDS_SECRET))) is None:
        there = await _there(api, namespace, SERVER_SECRET, ISSUER_SECRET)
        if len(there) == 2:
            return None
        if there:
            # Another run may have begun or ended meanwhile.
            if await api.get(_ref(namespace, SEEDS_SECRET)) is not None:
                continue
            if len(await _there(api, namespace, SERVER_SECRET, ISSUER_SECRET)) == 2:
                return None
            (missing,) = {SERVER_SECRET, ISSUER_SECRET} - set(there)
            raise SetupError(
                f"Secret {there[0]} exists without {SEEDS_SECRET}: supply {missing} too, "
                f"or the seeds that it was made from, or delete it"
            )
        new = seeds_secret(Seeds.complete({}, random), namespace=namespace)
        new["metadata"]["annotations"] = {TRANSIENT: "true"}
        try:
            created = await api.create(new)
        except ApiError as error:
            if error.status != 409:
                raise
            continue  # another run was first
        if len(await _there(api, namespace, SERVER_SECRET, ISSUER_SECRET)) == 2:
            # Another run has begun and ended since it was looked for seeds: these decide nothing.
            await _delete(api, created)
            return None
        made.append(SEEDS_SECRET)
        return created
    return stored


async def _add_certificates(
    api: KubeApi, namespace: str, random: Callable[[int], bytes], made: list[str]
) -> None:
    """Create the Secrets with certificates that are missing.

    Raises:
        SetupError: what the operator issues credentials from is not what this version makes.
    """
    there = await _there(api, namespace, CERTIFICATE_SECRET, ROUTES_SECRET)
    if len(there) == 2:
        return
    issuer = await _issuer(api, namespace)
    known = {
        "signing": issuer.signing_seed,
        "accounts": issuer.accounts_seed,
        "system": issuer.system_account,
    }
    try:
        seeds = Seeds.complete(known, random)
    except (TypeError, ValueError) as error:
        raise SetupError(f"Secret {ISSUER_SECRET}: {error!r}") from error
    for wanted in secrets(seeds, namespace=namespace):
        if wanted["metadata"]["name"] in {CERTIFICATE_SECRET, ROUTES_SECRET}:
            await _created(api, wanted, made)


async def _issuer(api: KubeApi, namespace: str) -> Issuer:
    """What the operator makes accounts and credentials from, as stored.

    Raises:
        SetupError: the Secret is not what this version makes.
    """
    granted = await api.get(_ref(namespace, ISSUER_SECRET)) or {}
    try:
        return Issuer.read(base64.b64decode((granted.get("data") or {})[ISSUER_FILE]).decode())
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(f"Secret {ISSUER_SECRET}: {error!r}") from error


async def _there(api: KubeApi, namespace: str, *names: str) -> list[str]:
    """Those of the Secrets that exist."""
    return [name for name in names if await api.get(_ref(namespace, name)) is not None]


async def _delete(api: KubeApi, secret: Manifest) -> None:
    """Delete this Secret; another run may have done so, and another one of its name stays."""
    try:
        await api.delete(Ref.of(secret), secret["metadata"]["uid"])
    except ApiError as error:
        if error.status != 409:
            raise


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
            return await set_up(api, namespace, site=environment.get("RLJOB_SITE", ""))
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
