"""Environment pods on the loopback: the servers that their containers run, and what workers know of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from e2e.harness.ports import hold_port
from nkeys import PREFIX_BYTE_ACCOUNT, encode_seed
from tests.waiting import in_time, within

from rljob_contract.samples import job_config
from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_operator.nats.credentials import Issuer, JobKeys
from rljob_operator.nats.environment_certificates import environment_keys
from rljob_runtime.environments.client import setup_of
from rljob_runtime.environments.messages import EnvironmentSetup
from rljob_runtime.environments.pod_keys import client_context
from rljob_runtime.environments.replicas import EnvironmentReplicas, PodAddress

_SEED = encode_seed(bytes(range(32)), PREFIX_BYTE_ACCOUNT).decode()


def write_keys(folder: Path, *, uid: str = "u-1", generation: int = 0) -> Path:
    """The files of both ends of a job, as its Secrets have them: in `pods` and `workers`."""
    keys = environment_keys(JobKeys(Issuer(_SEED, _SEED, "system"), "default", "job", uid, generation))
    for name, files in (("pods", keys.pods), ("workers", keys.workers)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / name / file).write_text(text)
    return folder


def config_of(name: str, **environment: object) -> JobConfig:
    rollout = {"environment": {"name": name, **environment}, "pools": [{"name": "a"}]}
    return job_config(Path(), rollout=rollout, reward={"functions": ["environment"]})


class Pod:
    """A server as the container of an environment pod runs it.

    Args:
        setup: of its job.
        keys: folder of its keys.
        folder: for its files.
    """

    def __init__(self, setup: EnvironmentSetup, keys: Path, folder: Path) -> None:
        self._setup, self._keys, self._folder = setup, keys, folder
        self._held = hold_port()
        self.address: PodAddress = self._held.getsockname()[:2]

    @property
    def ready(self) -> Path:
        return self._folder / f"ready-{self.address[1]}"

    @property
    def message(self) -> str:
        return (self._folder / f"message-{self.address[1]}").read_text()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", worker_protocol.ENVIRONMENT_MODULE, f"127.0.0.1:{self.address[1]}"),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                worker_protocol.ENVIRONMENT_SETUP: json.dumps(asdict(self._setup)),
                worker_protocol.ENVIRONMENT_KEYS: str(self._keys),
                worker_protocol.READY_FILE: str(self.ready),
                worker_protocol.TERMINATION_LOG: str(self._folder / f"message-{self.address[1]}"),
                **worker_protocol.dying_with(os.getpid()),
            },
        )

    async def is_ready(self) -> None:
        async with within():
            while not self.ready.exists():
                assert self.process.returncode is None
                await asyncio.sleep(0.05)

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        self._held.close()
        if self.process.returncode is None:
            self.process.send_signal(how)
        return await in_time(self.process.wait())


class Pods:
    """Environment pods of one job, and the name that has the addresses of those that are ready.

    Args:
        config: of the job.
        folder: for their files and keys.
    """

    def __init__(self, config: JobConfig, folder: Path) -> None:
        self.config, self._folder = config, folder
        self.keys = write_keys(folder / "keys")
        self.pods = list[Pod]()
        self.listed = set[PodAddress]()

    async def add(self, *, keys: Path | None = None) -> Pod:
        pod = Pod(setup_of(self.config), (keys or self.keys) / "pods", self._folder)
        self.pods.append(pod)
        await pod.start()
        await pod.is_ready()
        self.listed.add(pod.address)
        return pod

    async def addresses(self, _host: str, _port: int) -> frozenset[PodAddress]:
        return frozenset(self.listed)

    def worker(self, *, keys: Path | None = None, **more: Any) -> EnvironmentReplicas:
        context = client_context((keys or self.keys) / "workers")
        return EnvironmentReplicas(
            self.config, "job-environment:7450", context, addresses=self.addresses, **more
        )

    async def close(self) -> None:
        for pod in self.pods:
            await pod.end()
