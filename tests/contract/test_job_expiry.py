"""A whole job whose tokens are valid for seconds: each role takes newer ones while it runs, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from tests.waiting import within
from whole_job import NatsInstallation, Workers, config_of, holds, job_of, until

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.worker_protocol import NATS_JWT
from rljob_operator.children.nats_credentials import tokens_config_map
from rljob_operator.nats.credentials import (
    JobKeys,
    secret_credentials,
    system_signing_seed,
    user_limits,
)
from rljob_operator.nats.jwt import NkeyKind, credentials_file, public_key, seed_of, token
from rljob_operator.nats.permissions import Holder, Permissions

LIFETIME = 4
ROLES = (Holder.COORDINATOR, Holder.ROLLOUT, Holder.REWARD, Holder.TRAINER)
OFTEN = 2
"""Times that the server ends each role's connections at least."""


class ExpiringInstallation(NatsInstallation):
    """Its roles have a seed that lasts, and a token in a file that is replaced before it expires."""

    def environment(self, holder: Holder, uid: str) -> dict[str, str]:
        lasting = super().environment(holder, uid)
        if holder not in ROLES:
            return lasting
        credentials = secret_credentials(self.keys(uid), holder)
        return {**lasting, "RLJOB_NATS_CREDENTIALS": credentials, NATS_JWT: str(self._token(holder))}

    def keys(self, uid: str) -> JobKeys:
        return JobKeys(self.issuer, "default", "roles", uid)

    def _token(self, holder: Holder) -> Path:
        return self.folder / f"{holder}-token"

    def renew(self, uid: str) -> None:
        """Replace all files, as the operator and the kubelets do."""
        tokens = tokens_config_map(job_of(uid), ROLES, self.issuer, expires=int(time.time()) + LIFETIME)
        for holder in ROLES:
            written = self._token(holder).with_suffix(".new")
            written.write_text(tokens["data"][holder.value])
            written.replace(self._token(holder))

    @asynccontextmanager
    async def renewing(self, uid: str) -> AsyncIterator[None]:
        """Renew the tokens again and again."""
        self.renew(uid)

        async def again() -> None:
            while True:
                await asyncio.sleep(1)
                self.renew(uid)

        task = asyncio.create_task(again())
        try:
            yield
        finally:
            task.cancel()

    def _administrator(self) -> str:
        """Credentials of a user who may ask the server anything."""
        seed = seed_of(NkeyKind.USER, bytes(32))
        claims = {"type": "user", "issuer_account": self.issuer.system_account}
        claims |= user_limits(Permissions((">",), (">",)))
        signing = system_signing_seed(self.issuer.signing_seed)
        jwt = token(name="administrator", subject=public_key(seed), issuer=signing, claims=claims)
        return credentials_file(jwt, seed)

    async def expired(self, uid: str) -> Counter[Holder]:
        """How many connections of each role the server has ended because their time was over."""
        users = {public_key(self.keys(uid).user(holder)): holder for holder in ROLES}
        closed_ones = 1  # nats-server's number of that state
        question = json.dumps({"state": closed_ones, "auth": True, "limit": 10_000}).encode()
        async with self.connection(self._administrator(), "_INBOX") as administrator:
            answer = await administrator.request("$SYS.REQ.SERVER.PING.CONNZ", question)
        closed = json.loads(answer.data)["data"]["connections"] or []
        return Counter(
            users[one["authorized_user"]]
            for one in closed
            if one["reason"] == "Authentication Expired" and one.get("authorized_user") in users
        )


def slow(config: JobConfig) -> JobConfig:
    """The same job, whose steps take long enough for tokens to expire meanwhile."""
    spec = config.spec.model_dump(mode="json", by_alias=True)
    spec["rollout"]["engine"]["options"]["stepSeconds"] = 0.1
    return config.model_copy(update={"spec": type(config.spec).model_validate(spec)})


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_job_outlives_its_tokens_and_trains_nothing_twice(tmp_path: Path) -> None:
    uid = uuid4().hex
    tiny_model(tmp_path / "model")
    config = slow(config_of(tmp_path, uid))
    installation = ExpiringInstallation(tmp_path)
    async with installation.server:
        await installation.create(uid)
        async with (
            installation.renewing(uid),
            installation.opened(Holder.READER, uid, patience=100) as reader,
            Workers(installation, tmp_path, config) as workers,
        ):
            async with within(600):
                training = asyncio.create_task(workers.train())
                try:
                    line = await until(reader, lambda line: bool(line.finished))
                    await training
                except BaseException as error:
                    training.cancel()
                    error.add_note(workers.logs()[-20_000:])
                    raise
            ended = await installation.expired(uid)
        assert (line.finished, line.failure, line.version) == ("Succeeded", None, 6)
        assert line.trainer_attempt == 1
        assert all(ended[holder] >= OFTEN for holder in ROLES), ended
        await holds(config, installation.environment(Holder.READER, uid), versions=6)
