"""A NATS installation with credentials, and a whole job on it: its roles as processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import cluster_jobs
from cluster_jobs import SECONDS, SEEDS, lasting_credentials, operator
from e2e.harness.nats_server import EmbeddedServer
from tests.waiting import in_time, until_async

from rljob_cli.audit import audit
from rljob_cli.audit.read import read_configured
from rljob_core.config import JobConfig
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_core.spec import RLJobSpec
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.nats.accounts import Seeds, issuer, server_config
from rljob_operator.nats.credentials import operator_credentials
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.store import TRAJECTORY_BYTES, NatsStore


class NatsInstallation:
    """A server that asks for credentials, and who connects to it."""

    def __init__(self, folder: Path, seeds: Seeds = SEEDS) -> None:
        accounts = server_config(seeds, folder=str(folder / "accounts"))
        self.server = EmbeddedServer(folder, accounts=accounts)
        self.folder = folder
        self.issuer = issuer(seeds)

    def credentials(self, holder: Holder, uid: str, generation: int = 0) -> str:
        return lasting_credentials(
            self.issuer, holder, namespace="default", job="roles", uid=uid, generation=generation
        )

    def store(
        self, holder: Holder, uid: str, *, of: str | None = None, generation: int = 0, **options: object
    ) -> NatsStore:
        """A role's store; `of`: the UID of the job whose streams it tries for."""
        names = StreamNames.of_job(namespace="default", job="roles", uid=of or uid)
        return NatsStore(
            self.server.url,
            subject=names.subject,
            stream_prefix=names.prefix,
            credentials=self.credentials(holder, uid, generation),
            inbox=inbox_of(uid, holder),
            **{"patience": 20.0, "create": False} | options,  # type: ignore[arg-type]
        )

    @asynccontextmanager
    async def opened(
        self, holder: Holder, uid: str, *, of: str | None = None, **options: object
    ) -> AsyncIterator[NatsStore]:
        store = self.store(holder, uid, of=of, **options)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def create(self, uid: str, *, restorable: bool = False) -> None:
        """Let a job have its accounts and streams."""
        async with self.operating() as streams:
            await until_async(lambda: streams.prepare(job_of(uid), TRAJECTORY_BYTES, restorable=restorable))

    def environment(self, holder: Holder, uid: str) -> dict[str, str]:
        """The variables of a pod with that role's credentials."""
        credentials = self.credentials(holder, uid)
        return {"RLJOB_NATS_URL": self.server.url, "RLJOB_NATS_CREDENTIALS": credentials}

    def operating(self) -> AbstractAsyncContextManager[JobStreams]:
        """The operator's part, connected."""
        return operator(self.server.url, self.folder, issuer=self.issuer)

    @asynccontextmanager
    async def connection(self, credentials: str, inbox: str) -> AsyncIterator[Connection]:
        connection = Connection(
            self.server.url, patience=SECONDS, attempt=SECONDS, credentials=credentials, inbox=inbox
        )
        await connection.open()
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        async with self.connection(operator_credentials(self.issuer), "_INBOX") as connection:
            yield connection


job_of = partial(cluster_jobs.job_of, name="roles")
"""The job of the installation's streams."""


def config_of(folder: Path, uid: str) -> JobConfig:
    """A small job on the emulated engine and backend."""
    lengths = {"median": 8, "min": 1, "max": 40}
    return JobConfig(
        namespace="default",
        job="roles",
        uid=uid,
        spec=RLJobSpec.model_validate(
            {
                "steps": 6,
                "model": {"uri": str(folder / "model")},
                "data": {"dataset": "chain_sum", "promptsPerStep": 4, "groupSize": 2},
                "pipeline": {"mode": "BoundedAsync", "maxStaleness": 2},
                "rollout": {
                    "engine": {
                        "name": "Emulated",
                        "options": {"slots": 6, "stepSeconds": 0.001, "lengths": lengths},
                    },
                    "pools": [{"name": "a", "replicas": 2}],
                },
                "trainer": {"backend": "Emulated", "microBatchTokens": 200},
            }
        ),
        weights_uri=str(folder / "weights"),
        checkpoint_uri=str(folder / "checkpoints"),
        trainer_log_uri=str(folder / "trainer"),
    )


class Workers:
    """A job's roles as processes of their own, each with its own credentials."""

    def __init__(self, installation: NatsInstallation, folder: Path, config: JobConfig) -> None:
        self._installation = installation
        self._folder = folder
        self._config = config
        self._file = folder / "config.json"
        self._file.write_text(config.model_dump_json(by_alias=True))
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, holder: Holder, pod: str, **more: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "RLJOB_CONFIG": str(self._file),
            **self._installation.environment(holder, self._config.uid),
            "RLJOB_POD": pod,
            **more,
        }
        with (self._folder / f"{pod}.log").open("ab") as log:
            self.processes[pod] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rljob_runtime.main",
                holder.value,
                env=environment,
                stdout=log,
                stderr=log,
            )
        return self.processes[pod]

    async def train(self, *, after: int = 0) -> None:
        """Start the trainer, and again while it fails, as the operator does after that attempt."""
        for attempt in range(after + 1, after + 4):
            trainer = await self.start(Holder.TRAINER, f"trainer-{attempt}", RLJOB_ATTEMPT=str(attempt))
            if await trainer.wait() == 0:
                return
        raise AssertionError("the trainer fails again and again")

    def logs(self) -> str:
        return "\n".join(f"{file.name}\n{file.read_text()}" for file in sorted(self._folder.glob("*.log")))

    async def __aenter__(self) -> Workers:
        await self.start(Holder.COORDINATOR, "coordinator-0")
        for pod in ("a-0", "a-1"):
            await self.start(Holder.ROLLOUT, pod, RLJOB_POOL="a")
        await self.start(Holder.REWARD, "reward-0")
        return self

    async def __aexit__(self, *_: object) -> None:
        running = [process for process in self.processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
        ended = asyncio.gather(*(process.wait() for process in running))
        with suppress(TimeoutError):
            await in_time(asyncio.shield(ended))
        for process in running:
            if process.returncode is None:
                process.kill()
        await ended


async def until(store: NatsStore, done: Callable[[StepMetrics], bool]) -> StepMetrics:
    async for messages in store.read(Channel.METRICS):
        for line in (STEP_METRICS.validate_json(message.data) for message in messages):
            if done(line):
                return line
    raise AssertionError


async def holds(config: JobConfig, environment: dict[str, str], *, versions: int) -> None:
    findings = audit(await read_configured(config, environment))
    assert findings.holds, [check for check in findings.checks if not check.holds]
    assert findings.counts["versions"] == versions
